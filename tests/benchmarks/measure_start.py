"""How soon ``tvae encode photo.png`` is done: with nothing on disk, and once more, beside an import of PyTorch.

Each time is a process's, from its start to its end, and the least of ``--repeat``. The second column is its processor
time, for machines that have other work (more than one thread computes, and Windows does not tell it). Everything that
is kept from one process to the next (graphs, kernels, checksums) is in a folder of the script's own, which a first run
finds empty. What Python compiles is kept for all of them: of several repetitions, only the first compiles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from measuring.compiled import keep_compiled_files
from PIL import Image

from tvae.pipeline.bench.first_use import caches_in


def seconds(command: list[str], caches: Mapping[str, str]) -> tuple[float, float]:
    """Of one process, and of the processors for it. Raises CalledProcessError where it fails."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *command], check=True, env={**os.environ, **caches})
    after = os.times()
    computed = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - begin, computed


def photo(path: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (max(1, size // 16), max(1, size // 16), 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(path)


def main() -> None:
    with tempfile.TemporaryDirectory() as compiled:
        keep_compiled_files(Path(compiled))
        measure()


def measure() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vae", default="builtin")
    parser.add_argument("--size", type=int, default=1024, help="height and width of the photo")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--more", default="", help="words for tvae encode, such as '--device cpu'")
    asked = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {"import torch": [], "first run": [], "second run": []}
    for _ in range(asked.repeat):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            photo(folder / "photo.png", asked.size)
            (folder / "kept").mkdir()
            caches = caches_in(folder / "kept")
            tvae = ["-m", "tvae.cli", "encode", str(folder / "photo.png"), "--vae", asked.vae, "-o", str(folder)]
            rows["import torch"].append(seconds(["-c", "import torch"], caches))
            for row in ("first run", "second run"):
                rows[row].append(seconds([*tvae, "--overwrite", "-q", *asked.more.split()], caches))
    least = {row: [min(column) for column in zip(*times, strict=True)] for row, times in rows.items()}
    for row, (taken, computed) in least.items():
        torch, of_torch = least["import torch"]
        print(
            f"{row:12}  {taken:6.2f} s {taken - torch:+6.2f}   processor {computed:6.2f} s {computed - of_torch:+6.2f}"
        )


if __name__ == "__main__":
    main()
