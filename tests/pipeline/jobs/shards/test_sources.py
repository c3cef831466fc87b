"""What goes into shards: members of archives, their texts, texts beside files, clips whole and in pieces."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shard_files import photo, samples_in

from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemSkipped, Progress

LEVELS = [2 * (20 + (n * 37) % 200) / 255 - 1 for n in range(40)]
"""Of the frames that ``clip`` writes, as a VAE sees them."""


def packed(path: Path, *members: tuple[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def of(events: list[Any], kind: type[Any]) -> list[int]:
    return sorted(event.index for event in events if isinstance(event, kind))


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., Path]:
    """An archive of three pictures; ``changes`` are members by their name."""

    def archive(**changes: bytes) -> Path:
        pictures = [photo(tmp_path / f"{n}.png", n).read_bytes() for n in range(3)]
        given = {
            "0001.png": pictures[0],
            "0001.txt": b"one",
            "0001.json": b'{"a": 1}',
            "0002.left.png": pictures[1],
            "0002.right.png": pictures[2],
            "0002.TXT": b"two",
        }
        return packed(tmp_path / "in" / "00000.tar", *{**given, **changes}.items())

    return archive


def test_members_of_archives_and_their_texts(fill: Any, archive: Any, expected: Any, tmp_path: Path) -> None:
    source, out = archive(), tmp_path / "out"
    assert of(fill(source, posterior="mean"), ItemDone) == [0, 1, 2]
    found = samples_in(out)
    assert [one["key"] for one in found] == ["00000/0001", "00000/0002_left", "00000/0002_right"]
    texts = [{name: one[name] for name in one.keys() & {"txt", "source.json", "TXT"}} for one in found]
    assert texts == [{"txt": b"one", "source.json": b'{"a": 1}'}, {"txt": b"two"}, {"txt": b"two"}]
    for n, one in enumerate(found):
        assert np.abs(one["latent.npy"] - expected(tmp_path / f"{n}.png")).max() < 1e-6
    assert {path.name for path in out.iterdir()} == {"00000.tar", ".tvae-shards"}
    assert of(fill(source, posterior="mean"), ItemSkipped) == [0, 1, 2]


def test_what_an_archive_has_otherwise_is_made_again(fill: Any, archive: Any, tmp_path: Path) -> None:
    fill(archive())
    source = archive(**{"0001.txt": b"uno", "0002.right.png": photo(tmp_path / "new.png", 8).read_bytes()})
    assert of(fill(source), ItemDone) == [0, 2]
    found = {one["key"]: one for one in samples_in(tmp_path / "out")}
    assert found["00000/0001"]["txt"] == b"uno"
    assert len(found) == 3


def test_the_output_of_a_run_is_no_input_of_the_next(fill: Any, archive: Any, tmp_path: Path) -> None:
    archive()
    events = fill(output=tmp_path / "in" / "out", recursive=True)
    assert of(events, ItemDone) == [0, 1, 2]
    assert of(fill(output=tmp_path / "in" / "out", recursive=True), ItemSkipped) == [0, 1, 2]


def test_texts_beside_files(fill: Any, photos: Any, tmp_path: Path) -> None:
    folder = photos(2)
    (folder / "001.txt").unlink()
    for name in ("000.caption", "000.JSON", "000.mp3", "0001.txt", ".000.txt"):
        (folder / name).write_text(name)
    fill()
    first, second = samples_in(tmp_path / "out")
    assert first.keys() == {"key", "shard", "latent.npy", "json", "txt", "caption", "source.json"}
    assert first["source.json"] == b"000.JSON"
    assert second.keys() == {"key", "shard", "latent.npy", "json"}
    (folder / "000.caption").unlink()
    assert of(fill(), ItemDone) == [0]
    assert "caption" not in samples_in(tmp_path / "out")[1]


def test_mirrored_images(fill: Any, photos: Any, tmp_path: Path) -> None:
    photos(1)
    fill(flip=True, posterior="mean")
    (one,) = samples_in(tmp_path / "out")
    assert (one["flipped.npy"] == one["latent.npy"][..., ::-1]).all()


@pytest.mark.parametrize("space", ["raw", "model"])
def test_spaces(fill: Any, photos: Any, expected: Any, tmp_path: Path, space: str) -> None:
    folder = photos(1)
    fill(architecture=space, posterior="mean")
    (one,) = samples_in(tmp_path / "out")
    mean = expected(folder / "000.png")
    assert np.abs(one["latent.npy"] - (mean if space == "raw" else (mean - 0.25) * 0.5)).max() < 1e-6
    assert one["json"]["space"] == space


@pytest.mark.parametrize("temporal", [None, 4])
def test_clips(fill: Any, clip: Any, stand_in: Any, tmp_path: Path, temporal: int | None) -> None:
    """Frame by frame through an image VAE, and in pieces of 1 + 4 frames through a video VAE."""
    clip("in/a.mkv", tuple(range(0, 560, 40)), 64, 64)
    (tmp_path / "in" / "a.txt").write_text("a clip")
    pieces = {"frames": (5,), "stride": (4,)} if temporal else {}
    model = stand_in(temporal_factor=temporal, posterior=True)
    events = fill(posterior="mean", model=model, shards="8KB", **pieces)
    assert of(events, ItemDone) == [0]
    told = [event.done for event in events if isinstance(event, Progress)]
    assert told == ([*range(1, 15)] if temporal is None else [5, 9, 13])
    found = samples_in(tmp_path / "out")
    if temporal is None:
        (one,) = found
        assert (one["key"], one["latent.npy"].shape) == ("a", (3, 14, 8, 8))
        assert np.abs(one["latent.npy"].mean((0, 2, 3)) - LEVELS[:14]).max() < 0.01
        assert (one["json"]["start"], one["json"]["frames"], one["json"]["fps"]) == (0, 14, 25.0)
        return
    assert [one["key"] for one in found] == ["a_000000", "a_000004", "a_000008"]
    assert len({one["shard"] for one in found}) == 3
    for one in found:
        start = one["json"]["start"]
        wanted = [LEVELS[start], np.mean(LEVELS[start + 1 : start + 5])]
        assert one["latent.npy"].shape == (3, 2, 8, 8)
        assert np.abs(one["latent.npy"].mean((0, 2, 3)) - wanted).max() < 0.01
        assert one["txt"] == b"a clip"


def test_pieces_that_are_there_are_not_computed_again(
    fill: Any, clip: Any, photos: Any, stand_in: Any, bytes_of: Any, tmp_path: Path
) -> None:
    clip("in/a.mkv", tuple(range(0, 560, 40)), 64, 64)
    photos(1)
    model, wishes = stand_in(temporal_factor=4), {"frames": (5,), "stride": (4,), "shards": "8KB"}
    fill(model=model, **wishes)
    out = tmp_path / "out"
    whole = bytes_of(out)
    assert len(whole) == 4
    (out / "00002.tar").unlink()
    model.shapes.clear()
    events = fill(model=model, **wishes)
    assert of(events, ItemSkipped) + of(events, ItemDone) == [0, 1]
    assert bytes_of(out) == whole
    assert len(model.shapes) == 1  # a call for one piece


def test_a_clip_without_a_piece_fails_alone(fill: Any, clip: Any, photos: Any, tmp_path: Path) -> None:
    clip("in/a.mkv", (0, 40, 80), 64, 64)
    photos(1)
    events = fill(frames=(5,))
    assert (of(events, ItemDone), of(events, ItemFailed)) == ([0], [1])
    assert [one["key"] for one in samples_in(tmp_path / "out")] == ["000"]
