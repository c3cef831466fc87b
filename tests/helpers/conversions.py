"""Pictures and clips as ``tvae cache`` and ``tvae convert`` see them, to compare what comes of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from program import invoke

from tvae.pipeline.caches import TRAINERS

__all__ = ["BESIDE", "files_below", "tvae", "write_photo"]

BESIDE = "looks for a cache beside the images"


def write_photo(path: Path, width: int = 96, height: int = 64, seed: int = 0, **saved: Any) -> Path:
    """Noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **saved)
    return path


def tvae(*words: object) -> tuple[int, str, list[str]]:
    """Exit code, stdout, and the lines of stderr that are no sums and no advice on a trainer."""
    done = invoke([*map(str, words)])
    lines = (line.removeprefix("tvae: ") for line in done.stderr.splitlines() if line.startswith("tvae: "))
    notes = {note for trainer in TRAINERS.values() for note in trainer.notes}
    notes |= {str(one.note) for trainer in TRAINERS.values() for one in trainer.architectures}
    return done.exit_code, done.stdout, [line for line in lines if line not in notes and BESIDE not in line]


def files_below(folder: Path) -> dict[str, bytes]:
    """By name; without hidden folders, which are of tvae."""
    found = (path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder) for path in found}
    return {
        name.as_posix(): path.read_bytes()
        for path, name in sorted(names.items())
        if not any(part.startswith(".") for part in name.parts)
    }
