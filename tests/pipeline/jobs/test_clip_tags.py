"""Chapters and metadata through encode, decode and roundtrip, with sound and without."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from tvae.pipeline.jobs import Notice

Run = Callable[..., Any]


def titled(clip: Path) -> Path:
    """The clip with a title, a comment and two chapters."""
    target = clip.with_name("titled.mkv")
    with av.open(str(clip)) as source, av.open(str(target), "w") as output:
        copy = output.add_stream_from_template(source.streams.video[0], opaque=True)
        output.metadata.update({"title": "T", "comment": "C", "my_word": "x"})
        chapters = [(0, 80, "one"), (80, 160, "two")]
        output.set_chapters(
            [
                {"id": n, "start": a, "end": b, "time_base": Fraction(1, 1000), "metadata": {"title": name}}
                for n, (a, b, name) in enumerate(chapters, 1)
            ]
        )
        for packet in source.demux():
            if packet.size:
                packet.stream = copy
                output.mux_one(packet)
    return target


@pytest.mark.parametrize("audio", ["copy", "none"])
def test_titles_and_chapters_come_back(run: Run, clip: Run, tmp_path: Path, audio: str) -> None:
    source = titled(clip())
    run("roundtrip", source, output=tmp_path / "trip", audio=audio)
    run("encode", source, output=tmp_path / "latents", audio=audio)
    source.unlink()
    _, events = run("decode", tmp_path / "latents", output=tmp_path / "out", audio=audio)
    told = [event.message for event in events if isinstance(event, Notice)]
    assert [line for line in told if "my" in line.lower()] == [
        "metadata MY_WORD left out: mp4 files cannot hold them; write .mkv to keep them"
    ]
    for folder in ("trip", "out"):
        with av.open(str(tmp_path / folder / "titled.mkv.mp4")) as container:
            assert {key: container.metadata[key] for key in ("title", "comment")} == {"title": "T", "comment": "C"}
            assert [chapter["metadata"]["title"] for chapter in container.chapters()] == ["one", "two"]
    done, _ = run("decode", tmp_path / "latents", output=tmp_path / "out", audio=audio)
    assert (done.done, done.skipped) == (0, 1), "the source's comment hides the fingerprint"
