"""Options that would do nothing for any output are refused before any work; those of a mixed batch are not."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.writing import check_writing

IMAGE = Item(Path("a.safetensors"), 0, frozenset({"image"}), Path("out"), "a", False, False)
VIDEO = Item(Path("b.latents"), 1, frozenset({"video"}), Path("out"), "b", False, False)
EITHER = Item(Path("c.webp"), 2, frozenset({"image", "video"}), Path("out"), "c", False, False)
BROKEN = Item(Path("d"), 3, frozenset({"video"}), Path("out"), "d", False, False, "it is not there")
OPTIONS: dict[str, Any] = {"crf": 20.0, "codec": "libx264", "pix_fmt": "yuv420p", "fps": Fraction(30), "color": "bt709"}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("items", [[IMAGE], [IMAGE, IMAGE], [IMAGE, BROKEN]], ids=len)
def test_of_images_alone(name: str, items: list[Item]) -> None:
    job = Job("decode", ("x",), **{name: OPTIONS[name]})
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is for videos, and all of this is images"):
        check_writing(job, iter(items))


@pytest.mark.parametrize("name", ["crf", "codec", "pix_fmt", "fps"])
@pytest.mark.parametrize("items", [[VIDEO], [IMAGE, VIDEO], [EITHER], [IMAGE, EITHER], [BROKEN], []], ids=len)
def test_where_one_may_be_a_video(name: str, items: list[Item]) -> None:
    check_writing(Job("decode", ("x",), **{name: OPTIONS[name]}), items)


def test_encoding_writes_no_picture() -> None:
    check_writing(Job("encode", ("x",), crf=20.0), [IMAGE])
