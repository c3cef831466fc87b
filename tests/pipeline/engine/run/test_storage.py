"""Rows that live away from the device: whatever is written in one order and height is read in any other."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_rows import CPU, PLAIN, POSIX, SHAPE, value_of

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.engine.run.storage import Boundary
from tvae.pipeline.errors import PlanError

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
Draw = Callable[[st.SearchStrategy[Any]], Any]


def bands(draw: Draw, rows: int) -> list[tuple[int, int]]:
    """Ranges of one height that cover all rows, in any order."""
    height = draw(st.integers(1, rows))
    cut = [(lo, min(lo + height, rows)) for lo in range(0, rows, height)]
    return draw(st.permutations(cut))


@st.composite
def layouts(draw: Draw) -> tuple[tuple[int, ...], Axis]:
    """Shapes of two to five dimensions; rows in any of them, alone or between other factors."""
    shape = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    dim, outer, rows, inner = (draw(st.integers(0, n)) for n in (len(shape) - 1, 2, 9, 2))
    axis = Axis(dim, outer + 1, rows + 1, inner + 1)
    shape[dim] = axis.outer * axis.rows * axis.inner
    return tuple(shape), axis


@given(data=st.data(), place=st.sampled_from(["host", "disk"]), dtype=st.sampled_from(TYPES), last=st.booleans())
@settings(max_examples=2 * settings.default.max_examples)
def test_what_is_written_in_bands_is_read_in_other_bands(
    tmp_path_factory: pytest.TempPathFactory, data: Any, place: str, dtype: torch.dtype, last: bool
) -> None:
    shape, axis = data.draw(layouts())
    full = value_of(shape, dtype)
    where = shape, axis, dtype, CPU, last
    boundary: Boundary = OnHost(*where) if place == "host" else OnDisk(*where, tmp_path_factory.getbasetemp())
    try:
        assert boundary.bytes == full.nbytes
        for pending in [boundary.keep(lo, hi, crop(full, axis, lo, hi)) for lo, hi in bands(data.draw, axis.rows)]:
            pending.result()
        halo = data.draw(st.integers(0, 2))
        wanted = [(max(0, lo - halo), min(axis.rows, hi + halo)) for lo, hi in bands(data.draw, axis.rows)]
        for (lo, hi), pending in zip(wanted, [boundary.fetch(lo, hi) for lo, hi in wanted], strict=True):
            rows = pending.result()
            assert rows.dtype == dtype
            assert torch.equal(rows, crop(full, axis, lo, hi))
    finally:
        boundary.close()


places = pytest.mark.parametrize("place", ["host", "disk"])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes boundaries of SHAPE and closes them."""
    open_: list[Boundary] = []

    def make(place: str, last: bool = False, folder: Path = tmp_path) -> Boundary:
        what = SHAPE, PLAIN, torch.float32, CPU, last
        open_.append(OnHost(*what) if place == "host" else OnDisk(*what, folder))
        return open_[-1]

    yield make
    for boundary in open_:
        boundary.close()


@places
def test_rows_of_pictures_keep_their_layout(made: Any, place: str) -> None:
    """Kernels ask for channels innermost where the preset does."""
    full = value_of(SHAPE, torch.float32)
    boundary = made(place, last=True)
    boundary.keep(0, 12, full.contiguous(memory_format=torch.channels_last)).result()
    rows = boundary.fetch(3, 8).result()
    assert rows.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(rows, full[:, :, 3:8])


@places
@pytest.mark.parametrize("last", [False, True])
def test_rows_that_are_stored_belong_to_the_boundary(made: Any, place: str, last: bool) -> None:
    """The strip's memory may be written over as soon as the rows are stored."""
    full = value_of(SHAPE, torch.float32)
    rows = full.clone(memory_format=torch.channels_last if last else torch.contiguous_format)
    boundary = made(place, last=last)
    boundary.keep(0, 12, rows).result()
    rows.zero_()
    assert torch.equal(boundary.fetch(0, 12).result(), full)


@places
def test_rows_on_their_way_need_no_holder(made: Any, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(os, "pwrite"):
        write = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda *args: time.sleep(0.05) or write(*args))
    full, boundary = value_of(SHAPE, torch.float32), made(place, last=True)
    pending = boundary.keep(0, 12, full.clone(memory_format=torch.channels_last))
    for seed in range(9):
        value_of(SHAPE, torch.float32, seed + 1)  # would take the memory that was given up
    pending.result()
    assert torch.equal(boundary.fetch(0, 12).result(), full)


def test_rows_are_written_again(made: Any) -> None:
    """A strip that is repeated replaces what it wrote."""
    for place in ("host", "disk"):
        boundary, full = made(place), value_of(SHAPE, torch.float32)
        boundary.keep(0, 12, full + 1).result()
        boundary.keep(4, 9, full[:, :, 4:9]).result()
        assert torch.equal(boundary.fetch(4, 9).result(), full[:, :, 4:9])
        assert torch.equal(boundary.fetch(0, 4).result(), full[:, :, :4] + 1)
        assert torch.equal(boundary.fetch(9, 12).result(), full[:, :, 9:] + 1)


def test_calls_to_the_system_may_do_less_than_asked(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take at most 2 GiB, and may always stop early."""
    full = value_of(SHAPE, torch.float32)
    monkeypatch.setattr("tvae.pipeline.engine.run.disk_storage._MOST_BYTES", 100)
    if hasattr(os, "pwrite"):
        write, read = os.pwrite, os.preadv
        sizes: list[int] = []

        def counted(fd: int, view: Any, at: int) -> int:
            sizes.append(len(view))
            return write(fd, view[:33], at)

        monkeypatch.setattr(os, "pwrite", counted)
        monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:17]], at))
    boundary = made("disk")
    boundary.keep(0, 12, full).result()
    assert torch.equal(boundary.fetch(0, 12).result(), full)
    assert not hasattr(os, "pwrite") or max(sizes) == 100


def test_a_system_without_positioned_calls(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: the file has one position, which reads and writes move in turn."""
    for name in ("pwrite", "preadv", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    full, boundary = value_of(SHAPE, torch.float32), made("disk")
    pending = [boundary.keep(lo, lo + 3, full[:, :, lo : lo + 3]) for lo in (6, 0, 9, 3)]
    fetched = [boundary.fetch(lo, lo + 4) for lo in (2, 8)]
    for each in pending:
        each.result()
    for lo, each in zip((2, 8), fetched, strict=True):
        assert torch.equal(each.result(), full[:, :, lo : lo + 4])


def test_a_file_that_lost_its_end_is_an_error(made: Any) -> None:
    boundary = made("disk")
    os.ftruncate(boundary._file.fileno(), 100)
    with pytest.raises(OSError, match="ends early"):
        boundary.fetch(0, 12).result()


# -- the file ----------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not POSIX, reason="permissions and names of open files are POSIX's")
def test_the_file_is_private_has_no_name_and_its_full_size(made: Any, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        boundary = made("disk")
    finally:
        os.umask(before)
    facts = os.fstat(boundary._file.fileno())
    assert facts.st_mode & 0o777 == 0o600
    assert facts.st_nlink == 0
    assert facts.st_size == boundary.bytes
    assert facts.st_blocks * 512 >= boundary.bytes
    assert list(tmp_path.iterdir()) == []


def test_closing_ends_the_thread_and_the_file(made: Any, tmp_path: Path) -> None:
    boundary = OnDisk(SHAPE, PLAIN, torch.float32, CPU, False, tmp_path)
    boundary.keep(0, 12, value_of(SHAPE, torch.float32)).result()
    assert any(t.name.startswith("tvae-spill") for t in threading.enumerate())
    boundary.close()
    assert boundary._file.closed
    assert not any(t.name.startswith("tvae-spill") for t in threading.enumerate())
    assert list(tmp_path.iterdir()) == []


def test_a_value_without_elements_takes_no_place(tmp_path: Path) -> None:
    """The frames after the first of a single picture."""
    boundary = OnDisk((0, 4, 3), Axis(1, 1, 4, 1), torch.float32, CPU, False, tmp_path)
    boundary.keep(0, 4, torch.empty(0, 4, 3)).result()
    assert boundary.fetch(1, 3).result().shape == (0, 2, 3)
    boundary.close()


@pytest.mark.parametrize("block", [1, 1000, 5000])
@pytest.mark.parametrize("last", [False, True])
def test_host_memory_in_blocks(made: Any, block: int, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bands that lie in one, in two or in many."""
    monkeypatch.setattr("tvae.pipeline.engine.run.host_storage._BLOCK_BYTES", block)
    boundary = OnHost(SHAPE, PLAIN, torch.float32, CPU, last)
    full = value_of(SHAPE, torch.float32)
    rows = PLAIN.rows
    for lo in range(0, rows, 5):
        boundary.keep(lo, min(lo + 5, rows), crop(full, PLAIN, lo, min(lo + 5, rows))).result()
    for lo in range(rows):
        for hi in range(lo, rows + 1):
            assert torch.equal(boundary.fetch(lo, hi).result(), crop(full, PLAIN, lo, hi))
    boundary.close()


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="there the file's own methods write")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fills_up_or_fails_meanwhile_is_one_line(
    made: Any, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no place could be kept free from the start."""
    boundary = OnDisk(SHAPE, PLAIN, torch.float32, CPU, False, tmp_path)

    def fails(*_args: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(PlanError, match=f"cannot spill .* to .*: {os.strerror(code)}; name another folder"):
        boundary.keep(0, 12, value_of(SHAPE, torch.float32)).result()
    boundary.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(1, 6, 8, 5), (1, 6, 8, 5, 4)], ids=["picture", "clip"])
def test_rows_come_back_in_a_layout_that_what_is_made_of_them_keeps(shape: tuple[int, ...]) -> None:
    axis, last = Axis(2, 1, 8, 1), torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    full = value_of(shape, torch.float32)
    boundary = OnHost(shape, axis, torch.float32, CPU, True)
    boundary.keep(0, 8, full).result()
    rows = boundary.fetch(2, 5).result()
    assert rows.equal(crop(full, axis, 2, 5))
    for made in (rows, torch.nn.functional.pad(rows, [1, 1]), torch.cat([rows, rows], 2), rows + 1):
        assert made.is_contiguous(memory_format=last)
    boundary.close()
