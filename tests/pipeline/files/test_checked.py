"""What the gate for files lets through, and that it never waits."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import DEEPEST, open_regular, parse_json, read_bytes, read_json
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.tensor_header import read_header, read_texts
from tvae.pipeline.latents import open_latents
from tvae.pipeline.media import read_fingerprint
from tvae.pipeline.media.packet_file import Table, read_payloads, read_table


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[-Infinity]",
        "1e999",
        '{"a": [1e999]}',
        str(1 << 64),
        "1" * 5000,
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "[" * (DEEPEST + 2) + "]" * (DEEPEST + 2),
        '"\\ud800"',
        '{"\\u0000": 1}',
        b"\xff\xfe",
    ],
)
def test_json_out_of_bounds(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_json_within_bounds() -> None:
    name = os.fsdecode(b"\xff.png")
    for text, value in (
        ("[" * DEEPEST + "]" * DEEPEST, None),
        (str((1 << 64) - 1), (1 << 64) - 1),
        ('{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        ('"\\udcff.png"', name),
        ('"\\ud83d\\ude00"', "\U0001f600"),
    ):
        assert value is None or parse_json(text) == value
        parse_json(text)


def test_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    assert read_json(path) == [1, 2]
    assert read_bytes(path, 6) == b"[1, 2]"
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_bytes(path, 5)
    with pytest.raises(OSError, match="folder"):
        read_bytes(tmp_path, 5)


def test_a_small_file_takes_no_memory_for_the_largest(tmp_path: Path) -> None:
    """Where memory is limited (ulimit -v), 64 MiB for a configuration of a kilobyte were not to be had."""
    path = tmp_path / "a.json"
    path.write_text("[1, 2]")
    tracemalloc.start()
    try:
        assert read_json(path) == [1, 2]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    path.write_bytes(bytes(range(256)) * 1000)
    assert read_bytes(path, 256_000) == path.read_bytes()
    with pytest.raises(ValueError, match="more than 255999 bytes"):
        read_bytes(path, 255_999)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_nothing_waits_for_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "a.safetensors"
    os.mkfifo(fifo)
    for read in open_regular, read_header, read_texts:
        with pytest.raises(OSError, match="not a regular file"):
            read(fifo)
    for read in read_table, of_file:
        with pytest.raises(OSError, match="not a regular file"):
            read(fifo)
    with pytest.raises(OSError, match="not a regular file"):
        next(read_payloads(fifo, Table("", [], "")))
    for suffix in ".png", ".bmp", ".mp4":
        planted = fifo.with_suffix(suffix)
        os.mkfifo(planted)
        assert read_fingerprint(planted) is None
    with pytest.raises(InputError, match="not a regular file"):
        open_latents(fifo)
    folder = tmp_path / "a.latents"
    folder.mkdir()
    os.mkfifo(folder / "index.json")
    with pytest.raises(InputError, match="not a regular file"):
        open_latents(folder)
