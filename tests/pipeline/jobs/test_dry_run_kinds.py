"""What a dry run announces is what a run then makes, whatever files are called."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tvae.pipeline.jobs import Event, ItemDone, ItemPlanned, dry_run

Run = Callable[..., Any]


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(count)
    return [Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)) for _ in range(count)]


def save(path: Path, form: str, count: int = 1, **how: Any) -> None:
    first, *rest = pictures(count)
    more = {"save_all": True, "append_images": rest, "duration": 100} if rest else {}
    first.save(path, format=form, **more, **how)


def clip(path: Path, form: str) -> None:
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        for picture in pictures(3):
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Animations, clips and pictures with names of their own and of other kinds."""
    found = tmp_path / "in"
    found.mkdir()
    for name, form, count in (
        *(("still.png", "PNG", 1), ("moving.png", "PNG", 3), ("moving.apng", "PNG", 3), ("still.apng", "PNG", 1)),
        *(("still.gif", "GIF", 1), ("moving.gif", "GIF", 3), ("moving.webp", "WEBP", 3), ("still.webp", "WEBP", 1)),
        *(("gif.jpg", "GIF", 3), ("still gif.png", "GIF", 1), ("png.jpg", "PNG", 3), ("png.mp4", "PNG", 1)),
        *(("jpeg.mkv", "JPEG", 1), ("bmp.mov", "BMP", 1), ("tiff.avi", "TIFF", 3), ("webp.mp4", "WEBP", 1)),
        *(("jpeg.mjpeg", "JPEG", 1), ("moving png.webm", "PNG", 3)),
    ):
        save(found / name, form, count)
    text = PngImagePlugin.PngInfo()
    text.add_text("long", "".join(map(str, np.random.default_rng(0).integers(0, 1 << 40, 9000))))
    save(found / "late.png", "PNG", 3, pnginfo=text)
    for name, container in (("mkv.png", "matroska"), ("avi.jpg", "avi"), ("mov.webp", "mov"), ("nut.gif", "nut")):
        clip(found / name, container)
    return found


def outputs(events: list[Event], kind: type[Any]) -> set[tuple[str, str]]:
    return {(event.input.name, event.output.name) for event in events if isinstance(event, kind)}


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_announces_what_is_made(run: Run, folder: Path, tmp_path: Path, operation: str, sandbox: str) -> None:
    out = tmp_path / "out"
    dry, planned = run(operation, folder, output=out, dry_run=True, sandbox=sandbox)
    assert not out.exists()
    done, made = run(operation, folder, output=out, sandbox=sandbox)
    assert (dry.planned, dry.failed) == (done.done, done.failed) == (len([*folder.iterdir()]), 0)
    assert outputs(planned, ItemPlanned) == outputs(made, ItemDone)


@pytest.mark.long
def test_members_of_archives_as_well(run: Run, folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
        header = tarfile.TarInfo("short.png")
        header.size = 20
        archive.addfile(header, io.BytesIO((folder / "still.png").read_bytes()[:20]))
    _, planned = run("encode", tmp_path / "a.tar", output=tmp_path / "out", dry_run=True)
    done, made = run("encode", tmp_path / "a.tar", output=tmp_path / "out")
    assert done.failed == 1
    assert outputs(planned, ItemPlanned) >= outputs(made, ItemDone)
    assert done.done == len([*folder.iterdir()])


def test_many_are_not_decoded(run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader takes as long as hundreds of looks at the first bytes."""
    asked, kind_of = list[str](), dry_run.kind_of

    def told(path: Path, *rest: Any) -> Any:
        asked.append(path.name)
        return kind_of(path, *rest)

    monkeypatch.setattr(dry_run, "kind_of", told)
    run("encode", folder, output=tmp_path / "out", dry_run=True)
    assert not {name for name in asked if name.startswith(("still.png", "jpeg.mkv", "mkv", "avi", "mov.", "bmp"))}
