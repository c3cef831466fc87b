"""Which files of two folders belong together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvae.pipeline.comparison import pairs
from tvae.pipeline.errors import UsageError


def folder(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def names(first: Path, second: Path) -> list[tuple[str, str | None, str | None]]:
    def inside(path: Path | None, root: Path) -> str | None:
        return None if path is None else path.relative_to(root).as_posix()

    return [(name, inside(a, first), inside(b, second)) for name, a, b in pairs(first, second)]


def test_equal_names_at_any_depth(tmp_path: Path) -> None:
    first = folder(tmp_path / "1", "a.png", "in/b.MP4", "in/c.mp4.latents/index.json", "d.npz", "notes.txt", ".e.png")
    second = folder(tmp_path / "2", "a.png", "in/b.MP4", "in/c.mp4.latents/index.json", "in/deep/f.jpg")
    assert names(first, second) == [
        ("a.png", "a.png", "a.png"),
        ("d.npz", "d.npz", None),
        ("in/b.MP4", "in/b.MP4", "in/b.MP4"),
        ("in/c.mp4.latents", "in/c.mp4.latents", "in/c.mp4.latents"),
        ("in/deep/f.jpg", None, "in/deep/f.jpg"),
    ]


def test_what_decoding_calls_its_pictures(tmp_path: Path) -> None:
    first = folder(tmp_path / "1", "a.jpg", "b.mov", "c.jpg", "c.jpg.png", "d.jpg", "e.jpg")
    second = folder(
        tmp_path / "2", "a.jpg.png", "b.mov.MP4", "c.jpg.png", "d.jpg.png", "d.jpg.tiff", "e.jpg.safetensors"
    )
    assert names(first, second) == [
        ("a.jpg", "a.jpg", "a.jpg.png"),
        ("b.mov", "b.mov", "b.mov.MP4"),
        ("c.jpg", "c.jpg", None),
        ("c.jpg.png", "c.jpg.png", "c.jpg.png"),
        ("d.jpg", "d.jpg", None),
        ("d.jpg.png", None, "d.jpg.png"),
        ("d.jpg.tiff", None, "d.jpg.tiff"),
        ("e.jpg", "e.jpg", None),
        ("e.jpg.safetensors", None, "e.jpg.safetensors"),
    ]


def test_links_are_not_followed(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "1", "a.png"), folder(tmp_path / "2", "a.png")
    (first / "again.png").symlink_to(first / "a.png")
    (first / "round").symlink_to(tmp_path)
    assert [name for name, *_ in pairs(first, second)] == ["a.png"]


def test_two_files_are_a_pair_whatever_they_are_called(tmp_path: Path) -> None:
    folder(tmp_path, "a.png", "b.jpg", "c.mp4.latents/index.json")
    a, b, c = tmp_path / "a.png", tmp_path / "b.jpg", tmp_path / "c.mp4.latents"
    assert pairs(a, b) == [(str(a), a, b)]
    assert pairs(c, a) == [(str(c), c, a)]  # which cannot be compared; that is told then


def test_refusals(tmp_path: Path) -> None:
    first, empty = folder(tmp_path / "1", "a.png"), folder(tmp_path / "2", "notes.txt")
    for pair, told in (
        ((first, tmp_path / "nothing"), "nothing does not exist"),
        ((first, first / "a.png"), "is a folder and the other is not"),
        ((first, empty), "no latents, images or videos in this folder"),
    ):
        with pytest.raises(UsageError, match=told):
            pairs(*pair)
