"""Whatever gets a final name has been flushed to the disk before, and its folder is flushed after."""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from durable import Disk

from tvae.pipeline.errors import OutputError
from tvae.pipeline.files import atomic
from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, open_parted_writer, open_writer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders cannot be flushed there")

LIKE = PictureSpec(32, 16, Fraction(1, 1000), Fraction(25))
GREY = np.full((16, 32, 3), 90, np.uint8)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with monkeypatch.context() as patch:
        yield Disk(patch)


def test_replacing(disk: Disk, tmp_path: Path) -> None:
    for text in ("old", "new"):
        with atomic.replacing(tmp_path / "a") as temporary:
            temporary.write_text(text)
    disk.check(tmp_path)


def test_a_name_that_may_not_last_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(atomic, "flush_folder", failing)
    with pytest.raises(OSError, match="Input/output"), atomic.replacing(tmp_path / "a") as temporary:
        temporary.touch()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_an_error_while_it_is_filled(there: bool, tmp_path: Path) -> None:
    target = tmp_path / "a"
    if there:
        target.write_text("old")
    with pytest.raises(KeyError), atomic.replacing(target) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise KeyError
    assert [path.read_text() for path in tmp_path.iterdir()] == (["old"] if there else [])


def test_the_error_is_told_though_nothing_can_be_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(KeyError), atomic.replacing(folder / "a"):  # noqa: PT012
        folder.rmdir()
        folder.touch()  # what is below it is not "not there", but "no folder"
        raise KeyError


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp", ".bmp", ".tiff", ".mp4", ".mkv"])
def test_pictures_and_films(suffix: str, disk: Disk, tmp_path: Path) -> None:
    with open_writer(tmp_path / f"a{suffix}", LIKE, WriteOptions(fingerprint="a" * 64)) as writer:
        writer.write(Frame(GREY, 0, 40))
        writer.commit()
    disk.check(tmp_path)


def test_parts_of_a_film(disk: Disk, tmp_path: Path) -> None:
    with open_parted_writer(tmp_path / "a.mp4", LIKE) as writer:
        for number in range(2):
            writer.write(Frame(GREY, 40 * number, 40))
            writer.end_part()
        disk.check(tmp_path)
        writer.commit()
    disk.check(tmp_path)


def test_checkpoints(disk: Disk, tmp_path: Path) -> None:
    from tvae.pipeline.jobs.checkpoint import Checkpoint, Checkpoints

    Checkpoints(tmp_path / "state", "f").write(Checkpoint(1, 2, 3, [torch.ones(2)]))
    disk.check(tmp_path)


def test_presets(disk: Disk, tmp_path: Path) -> None:
    from program import invoke

    from tvae.cli import tuning

    path = tmp_path / "mine.toml"
    assert invoke(["preset", "export", "cpu", "-o", str(path)]).exit_code == 0
    tuning._write(tmp_path / "tuned.toml", path.read_text())
    disk.check(tmp_path)


def test_what_kernels_keep(disk: Disk, tmp_path: Path) -> None:
    from tvae.kernels.kept_bytes import keep

    keep(tmp_path / "a.cubin", b"\x7fELF")
    assert disk.named == {tmp_path / "a.cubin"}


@pytest.fixture(params=["pipe", "link to a device"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(os.devnull)
    return path


def test_what_is_no_file_is_not_replaced(stream: Path) -> None:
    """Of whoever may do anything, /dev/null became a file."""
    before = stream.lstat()
    with pytest.raises(OSError, match="device or a pipe"), atomic.replacing(stream) as temporary:
        temporary.write_text("a")
    with pytest.raises(OutputError, match=r"a\.png: it is a device or a pipe"):
        open_writer(stream, LIKE, WriteOptions())
    assert os.path.samestat(stream.lstat(), before)
    assert [*stream.parent.iterdir()] == [stream]


def test_text_goes_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    atomic.put_text(pipe, "a\nb\n")
    reader.join(30)
    assert found == ["a\nb\n"]
    assert pipe.is_fifo()
    atomic.put_text(Path(os.devnull), "a")
    assert Path(os.devnull).is_char_device()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no names for open files")
def test_text_goes_into_what_is_open(tmp_path: Path) -> None:
    """As /dev/stdout leads to a file where a shell writes a command's output there: root replaced the link."""
    with (tmp_path / "told").open("w") as file:
        file.write("before\n")
        file.flush()
        path = Path(f"/dev/fd/{file.fileno()}")
        atomic.put_text(path, "a\n")
        with pytest.raises(OSError, match="device or a pipe"):
            atomic.check_file(path)
    assert (tmp_path / "told").read_text() == "before\na\n"


RENAMES = {"replace", "rename", "renames", "link", "move"}
ALLOWED = {"pipeline/files/atomic.py", "pipeline/session/graph_cache.py", "kernels/kept_bytes.py"}
"""Where files get their names; each is tested here but the graphs', whose own test it is."""


def test_files_are_named_in_few_places() -> None:
    root = Path(__file__).resolve().parents[3]
    found = set()
    for package in ("cli", "kernels", "pipeline", "presets", "public"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "import os" in text or "import shutil" in text else ():
                match node:
                    case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="os" | "shutil"))) if name in RENAMES:
                        found.add(path.relative_to(root).as_posix())
    assert found <= ALLOWED
