"""Folders of photos that no network is needed for: soft shapes with fine grain, about as large as JPEGs of cameras."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["buckets", "photos"]

DIFFERENT = 16
"""Pictures that are made of a size; the others are copies."""


def photos(folder: Path, sizes: Sequence[tuple[int, int]]) -> Path:
    """One JPEG of each (width, height), in turn, made again where the folder has another number of them."""
    if folder.is_dir() and len([*folder.iterdir()]) == len(sizes):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made: dict[tuple[int, int], list[Path]] = {}
    jobs = []
    for number, size in enumerate(sizes):
        path, known = folder / f"{number:06d}.jpg", made.setdefault(size, [])
        jobs.append((path, size, number, known[number % DIFFERENT] if len(known) >= DIFFERENT else None))
        known.append(path)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_make, [job for job in jobs if job[3] is None]))
        list(pool.map(_make, [job for job in jobs if job[3] is not None]))
    return folder


def buckets(pixels: int, count: int) -> list[tuple[int, int]]:
    """So many sizes of about as many pixels, in steps of 64, from tall to wide."""
    side, found = round(pixels**0.5), list[tuple[int, int]]()
    for ratio in np.geomspace(0.4, 2.5, 40 * count):
        width, height = (max(64, round(n / 64) * 64) for n in (side * ratio**0.5, side / ratio**0.5))
        if (width, height) not in found:
            found.append((width, height))
    step = max(1, len(found) // count)
    return found[::step][:count]


def _make(job: tuple[Path, tuple[int, int], int, Path | None]) -> None:
    path, (width, height), seed, like = job
    if like is not None:
        shutil.copyfile(like, path)
        return
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    for cells, weight in ((4, 70.0), (16, 30.0), (64, 14.0), (256, 6.0)):
        coarse = rng.standard_normal((min(cells, height), min(cells, width), 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            total[..., channel] += weight * np.asarray(layer)
    total += rng.standard_normal(total.shape).astype(np.float32) * 2.0 + 128
    Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(path, quality=90)
