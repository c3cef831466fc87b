"""From names to items: folders, patterns, lists."""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemFailed, Job, read_list, run_job
from tvae.pipeline.jobs.items import expand


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "b.jpg",
        "A.PNG",
        "clip.MP4",
        "notes.txt",
        ".hidden.png",
        "sub/c.webp",
        "sub/deep/d.mov",
        "clip.mp4.latents/streams.mkv",
        "out/b.jpg.png",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*inputs: str, **fields: Any) -> Sequence[tuple[str, str]]:
    """(path, place in the mirrored tree) of every item."""
    return [(one.path.as_posix(), (one.below / one.name).as_posix()) for one in expand(Job("encode", inputs, **fields))]


def test_a_folder_gives_its_media_sorted(tree: Path) -> None:
    assert found(str(tree)) == [(f"{tree}/{name}", name) for name in ("A.PNG", "b.jpg", "clip.MP4")]


def test_recursive_mirrors_and_leaves_out_latents_and_the_output(tree: Path) -> None:
    assert [place for _, place in found(".", recursive=True, output="out")] == [
        "A.PNG",
        "b.jpg",
        "clip.MP4",
        "sub/c.webp",
        "sub/deep/d.mov",
    ]


@pytest.mark.parametrize(
    ("pattern", "places"),
    [
        ("*.jpg", ["b.jpg"]),
        ("sub/*.webp", ["c.webp"]),
        ("*/*.webp", ["sub/c.webp"]),
        ("sub/**/*.mov", ["deep/d.mov"]),
        ("s[u]b/*", ["sub/c.webp", "sub/deep/d.mov"]),
    ],
)
def test_patterns_are_expanded_by_us(tree: Path, pattern: str, places: list[str]) -> None:
    assert [place for _, place in found(pattern)] == places


def test_a_name_with_brackets_is_a_name_first(tree: Path) -> None:
    (tree / "x[1].png").touch()
    assert found("x[1].png") == [("x[1].png", "x[1].png")]


def test_named_twice_is_one_item(tree: Path) -> None:
    assert found("b.jpg", "./b.jpg", str(tree / "b.jpg")) == [("b.jpg", "b.jpg")]


def test_an_odd_suffix_counts_when_it_is_named(tree: Path) -> None:
    assert found("notes.txt") == [("notes.txt", "notes.txt")]


@pytest.mark.parametrize("missing", ["nope.png", "nope/*.png", "b.jpg/x"])
def test_what_is_not_there_is_refused(tree: Path, missing: str) -> None:
    with pytest.raises(UsageError, match=r"exist|matches"):
        found("b.jpg", missing)


def test_an_empty_folder_is_a_bad_item(tree: Path) -> None:
    (tree / "empty").mkdir()
    (one,) = expand(Job("encode", ("empty",)))
    assert one.problem
    assert "--recursive" in one.problem
    (one,) = expand(Job("decode", (str(tree / "sub"),), recursive=True))
    assert "no latents" in (one.problem or "")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_that_lead_nowhere_are_told(tree: Path) -> None:
    """Of latents as of media: passing over them would look like success."""
    names = ["a.latents", "a.safetensors", "b.png"]
    for name in names:
        (tree / "sub" / name).symlink_to("nowhere")
    assert [path for path, _ in found("sub")] == ["sub/b.png", "sub/c.webp"]
    told = [one.path.name for one in expand(Job("decode", ("sub",)))]
    assert told == names[:2]
    events: list[Event] = []
    done = run_job(Job("decode", ("sub",), "out", device="cpu"), events.append)
    assert (done.done, done.failed) == (0, 2)
    failed = [event.error for event in events if isinstance(event, ItemFailed)]
    assert all("No such file or directory" in error or "no index.json" in error for error in failed), failed


def test_lists(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tree / "list.txt"
    listing.write_bytes("\ufeffb.jpg\r\n\r\n# a comment\r\n  sub \r\nä#1.png\n".encode())
    assert read_list(str(listing)) == ["b.jpg", "sub", "ä#1.png"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"clip.MP4\n\xe4.png\n"), encoding="latin-1"))
    assert read_list("-") == ["clip.MP4", "ä.png"]
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        read_list("-")
    listing.write_bytes(b"\xff\xfeb")
    with pytest.raises(UsageError, match="save it as UTF-8"):
        read_list(str(listing))
    with pytest.raises(UsageError, match="cannot read the list"):
        read_list("no-such-list")


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_lists_of_windows_powershell(mark: bytes, tmp_path: Path) -> None:
    """Its ``>`` writes UTF-16 with a mark."""
    names = [f"ä {number:09}.png" for number in range(80_000)]  # more than is read at once
    encoding = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    (tmp_path / "list.txt").write_bytes(mark + "\r\n".join(["# photos", *names, ""]).encode(encoding))
    assert read_list(str(tmp_path / "list.txt")) == names


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_to_folders_are_not_followed_into_circles(tree: Path) -> None:
    (tree / "sub" / "loop").symlink_to(tree)
    assert len(found("sub", recursive=True)) == 2
