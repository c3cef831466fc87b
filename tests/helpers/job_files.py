"""Job files of a few small images, and what they make."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from tvae.pipeline.batch.manifest_lines import manifest_name

NAME = manifest_name(None)
ENCODE = '[[step]]\noperation = "encode"\ninputs = "in"\nrecursive = true\noutput = "out"\n'
DECODE = '[[step]]\noperation = "decode"\ninputs = "out"\nrecursive = true\noutput = "back"\n'


def photo(path: Path, seed: int, width: int = 32, height: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(values).save(path)
    return path


def outputs(folder: Path) -> list[Path]:
    ours = (NAME, "report.json")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in ours]
    return [path for path in files if not path.name.startswith("manifest-")]


def checksums(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in outputs(folder)}


def values(folder: Path) -> dict[str, bytes]:
    """Of pictures, which say when the latents were made that they are of; of latents all bytes."""
    found = {}
    for path in outputs(folder):
        picture = np.asarray(Image.open(path)).tobytes() if path.suffix == ".png" else None
        found[str(path.relative_to(folder))] = path.read_bytes() if picture is None else picture
    return found
