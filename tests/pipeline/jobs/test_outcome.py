"""What is told of an item that failed by what the system said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tvae.pipeline.jobs.outcome import failure
from tvae.pipeline.jobs.outputs import Item

ITEM = Item(Path("in/a.png"), 0, frozenset({"image"}), Path("out"), "a", exact=False, to_latents=True)


@pytest.mark.parametrize(
    ("filename", "told"),
    [
        (None, "cannot be read: No such file or directory"),
        (str(ITEM.source), "cannot be read: No such file or directory"),
        ("out/b.safetensors", "out/b.safetensors: No such file or directory"),
    ],
)
def test_the_systems_words_without_its_number(filename: str | None, told: str) -> None:
    """A source that goes between two looks was told of as '[Errno 2] ...'."""
    error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), *([] if filename is None else [filename]))
    assert failure(ITEM, error).error == told
