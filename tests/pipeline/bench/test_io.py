"""The input and output benchmark reads and writes what it says, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tvae.pipeline.bench.io import bench_io
from tvae.pipeline.errors import InputError

CPU = torch.device("cpu")


def test_everything_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    found = bench_io(CPU, file=None, size=(32, 16), frames=9, folder=tmp_path, disk_bytes=1 << 16)
    rows = {row.what: row for row in found}
    picture = 32 * 16 * 3
    assert (rows["decode video"].frames, rows["decode video"].bytes) == (9, 9 * picture)
    assert (rows["read image"].frames, rows["write image"].bytes) == (1, picture)
    assert rows["write latents"].bytes == rows["read latents"].bytes == 16 * 9 * 2 * 4 * 2
    assert rows["write to disk"].bytes == 1 << 16
    for row in rows.values():
        assert row.seconds > 0
        assert row.to_json()["bytes_per_second"] == row.bytes / row.seconds
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "a.png"
    Image.new("RGB", (20, 10)).save(path)
    found = bench_io(CPU, file=str(path), size=(32, 16), frames=2, folder=None, disk_bytes=1 << 10)
    (row,) = (row for row in found if row.what == "read file")
    assert (row.bytes, row.frames, row.note) == (20 * 10 * 3, 1, "20x10 png")
    path.write_text("no picture")
    with pytest.raises(InputError):
        list(bench_io(CPU, file=str(path), size=(32, 16), frames=2, folder=None, disk_bytes=1 << 10))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write into"):
        list(bench_io(CPU, file=None, size=(32, 16), frames=2, folder=tmp_path / "file"))
