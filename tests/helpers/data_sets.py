"""A small data set of diffusion-pipe in the current folder: pictures of several shapes, captions, its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["BUCKETS", "SIZES", "made", "picture"]

SIZES = {"a.png": (96, 64), "b.png": (64, 96), "c.png": (80, 81), "größe.jpg": (90, 64), "e.png": (64, 64)}
BUCKETS = """
resolutions = [64, 96]
enable_ar_bucket = true
min_ar = 0.5
max_ar = 2.0
num_ar_buckets = 5
"""


def picture(path: Path, size: tuple[int, int], seed: int = 0) -> None:
    """Smooth noise, so that scaling keeps much of it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size).save(path)


def made(settings: str = BUCKETS, folder: str = "pictures") -> Path:
    """The file, which names the folder as it is named here."""
    Path(folder).mkdir(exist_ok=True)
    for number, (name, size) in enumerate(SIZES.items()):
        picture(Path(folder, name), size, number)
        Path(folder, name).with_suffix(".txt").write_text(f" a caption of {name}\n", encoding="utf-8")
    path = Path("dataset.toml")
    path.write_text(f"{settings}\n[[directory]]\npath = '{folder}'\n", encoding="utf-8")
    return path
