"""Triton reads itself once, in one go, and says what it says by itself."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton

from tvae.kernels import cache, triton_name
from tvae.kernels import triton as level
from tvae.kernels import triton_reading as reading
from tvae.kernels.triton import prepare

OWN_NAME = getattr(triton.runtime.cache.triton_key, "__wrapped__", None)
"""Reads all files, each time."""


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no process has read Triton."""
    monkeypatch.setattr(cache, "_root", lambda: tmp_path / "kept")
    monkeypatch.setattr(triton.runtime.cache, "triton_key", functools.lru_cache(OWN_NAME))


def test_the_name_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Whole(reading._Whole):
        def read(self, size: int = -1) -> Any:
            found = super().read(size)
            read.append(len(found))
            return found

    place = triton.runtime.cache
    expected = OWN_NAME()
    monkeypatch.setattr(reading, "_Whole", Whole)
    reading.read_triton()
    assert place.triton_key() == expected
    assert max(read) > 1 << 26  # the library, at once
    assert not hasattr(place, "open")


def test_the_next_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    place = triton.runtime.cache
    reading.read_triton()
    expected, times = place.triton_key(), [0]
    for _ in range(2):
        monkeypatch.setattr(place, "triton_key", lambda: pytest.fail("read again"))
        reading.read_triton()
        assert place.triton_key() == expected
        assert place.triton_key.cache_info().currsize == 1, "as Triton's own"
        found = place.triton_key
        reading.read_triton()
        assert place.triton_key is found
    library = next(Path(place.__file__).parent.parent.joinpath("_C").glob("libtriton*"))

    def changed(path: str, state: Callable[[str], Any] = triton_name._state) -> Any:
        return (0, 0, 0) if Path(path) == library else state(path)

    monkeypatch.setattr(triton_name, "_state", changed)
    monkeypatch.setattr(place, "triton_key", lambda: times.append(1) or "another")
    reading.read_triton()
    assert (place.triton_key(), times) == ("another", [0, 1, 1])


def test_ahead_of_its_use_where_the_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    place = triton.runtime.cache
    reading.read_ahead()
    assert place.triton_key.is_known
    monkeypatch.setattr(place, "triton_key", lambda: pytest.fail("read again"))
    reading.read_ahead()
    assert not hasattr(place.triton_key, "is_known"), "a process that may need no Triton does not load it"


@pytest.mark.parametrize("broken", ["find_spec", "import_module"])
def test_one_that_cannot_be_read_is_told_later(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail(name: str) -> Any:
        asked.append(name)
        raise ImportError("no library")

    monkeypatch.setattr(reading, broken, fail)
    reading.read_ahead()
    assert asked


def opened(place: Any, path: Path) -> bytes:
    with place.open(path, "rb") as file:
        found: bytes = file.read(3)
    return found


def test_all_else_is_opened_as_ever(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(range(256)) * (reading._LARGE // 256))
    small.write_bytes(b"small")
    elsewhere: list[bytes] = []
    place: Any = type("Module", (), {})
    with reading._in_one_go(place):
        thread = threading.Thread(target=lambda: elsewhere.append(opened(place, large)))
        thread.start()
        thread.join()
        with place.open(large, "rb") as file:
            assert file.read(3)[:] == large.read_bytes()
            assert file.read(3) == b""
        assert opened(place, small) == b"sma"
        with place.open(large, encoding="latin-1") as file:
            assert file.read(3) == "\x00\x01\x02"
        with pytest.raises(FileNotFoundError):
            place.open(tmp_path / "none", "rb")
    assert elsewhere == [b"\x00\x01\x02"]


def test_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, times = [0], [0], [0]

    def read() -> None:
        at_once[0] += 1
        times[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.05)
        at_once[0] -= 1

    monkeypatch.setattr(triton.runtime.cache, "triton_key", read)
    reading.wait_for_reading()
    assert times == [0]
    prepare(set(), torch.bfloat16, 0)
    threads = [threading.Thread(target=reading.read_triton) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in (*threads, *(t for t in threading.enumerate() if t.name == "tvae-read")):
        thread.join()
    assert (most, times) == ([1], [1])


@pytest.mark.parametrize("fails", [False, True])
def test_the_compiler_is_asked_once_who_it_is(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that build would each start a process for that. What fails is told by a build."""
    asked: list[str] = []

    def hash_() -> str:
        asked.append("hash")
        if fails:
            raise OSError("no ptxas")
        return "12.9"

    driver = SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: asked.append("target") or "sm_90"))
    monkeypatch.setattr(triton.runtime, "driver", driver)
    monkeypatch.setattr(level, "make_backend", lambda target: SimpleNamespace(hash=hash_))
    monkeypatch.setattr(level, "read_triton", lambda: asked.append("read"))
    level._begin()
    assert asked == ["target", "hash", "read"]


def test_a_launch_waits_for_it() -> None:
    with reading._reading:
        thread = threading.Thread(target=reading.wait_for_reading)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()


def test_a_release_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(triton.runtime.cache, "triton_key")
    reading.read_triton()
