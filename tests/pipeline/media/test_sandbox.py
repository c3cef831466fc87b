"""Images decoded in another process: the same as in this one, and a decoder that fails badly costs its file alone."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, features
from stand_in import StandIn

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, run_job
from tvae.pipeline.media import open_reader, sandbox_process
from tvae.pipeline.media.image_check import looks_whole
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.sandbox import Sandbox
from tvae.pipeline.media.sandbox_messages import receive
from tvae.pipeline.media.sandbox_process import COMMAND

if sys.platform == "linux":
    import fcntl

BAD_DECODER = """
import ctypes, os, time
from PIL.PngImagePlugin import PngImageFile
from tvae.pipeline.media import sandbox_worker

works = PngImageFile.load
taken = []

def load(image):
    name = os.path.basename(image.filename)
    if "aborts" in name:
        os.abort()
    if "crashes" in name:
        ctypes.string_at(8)
    while "greedy" in name:
        taken.append(bytearray(64 << 20))
    if "hangs" in name:
        time.sleep(1000)
    if "leaves" in name:
        os._exit(0)
    if "prints" in name:
        os.write(1, b"noise"), os.write(2, b"noise")
    return works(image)

PngImageFile.load = load
sandbox_worker.main()
"""


def running() -> set[int]:
    """Processes that this one has started, dead ones that nobody has waited for among them."""
    own, found = os.getpid(), set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == own:
                found.add(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = running() if sys.platform == "linux" else set()
    yield
    if sys.platform == "linux":
        assert running() <= before


@pytest.fixture
def bad_decoder(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    monkeypatch.setattr(sandbox_process, "COMMAND", (sys.executable, "-P", "-c", BAD_DECODER))


def pictures(folder: Path) -> dict[str, Path]:
    """A file of every way to be read."""
    levels = np.random.default_rng(0).integers(0, 256, (33, 50, 3), dtype=np.uint8)
    rgb, found = Image.fromarray(levels), {}
    deep = Image.fromarray(levels[..., 0].astype(np.uint16) * 250)
    turned = Image.Exif()
    turned[0x0112] = 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes().replace(b"s\0R\0G\0B", b"o\0d\0d\0!")

    def save(name: str, image: Image.Image, **options: Any) -> None:
        image.save(folder / name, **options)
        found[name] = folder / name

    for suffix in ("png", "jpg", "webp", "bmp", "tif", "gif", "ppm", "tga", *(["avif"] * features.check("avif"))):
        save(f"rgb.{suffix}", rgb)
    for mode in ("1", "L", "LA", "P", "RGBA"):
        save(f"{mode}.png", rgb.convert(mode))
    save("CMYK.jpg", rgb.convert("CMYK"))
    save("deep.png", deep)
    save("deep.tif", deep)
    save("turned.jpg", rgb, exif=turned)
    save("turned.tif", rgb, exif=turned)
    save("profile.png", rgb, icc_profile=profile)
    save("several.tif", rgb, save_all=True, append_images=[rgb.rotate(90)])
    save("lzw.tif", rgb, compression="tiff_lzw")
    return found


def test_the_same_as_in_this_process(tmp_path: Path, nothing_left: None) -> None:
    held: dict[str, list[int]] = {"here": [], "there": []}
    with Sandbox("on") as there:
        for name, path in pictures(tmp_path).items():
            with open_reader(path, hold=held["here"].append) as reader:
                frames = list(reader)
            decoded = there.open_reader(path, hold=held["there"].append, memory=1 << 30)
            with decoded:
                assert (decoded.info, decoded.warnings, decoded.count()) == (reader.info, reader.warnings, 1), name
                (frame,) = decoded
            assert np.array_equal(frame.rgb, frames[0].rgb), name
            assert (frame.pts, frame.duration, frame.rgb.flags.writeable) == (None, None, True)
        assert held["here"] == held["there"]
        assert len(there._all) == 1  # one process has done them all


def test_refusals_are_the_same(tmp_path: Path, nothing_left: None) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.png").touch()
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    with Sandbox("on") as there:
        for name, limits in {
            "text.png": {}, "empty.png": {}, "cut.png": {}, "a.png": {"max_pixels": 5}, "./a.png": {"memory": 99},
        }.items():  # fmt: skip
            with pytest.raises(InputError) as here:
                open_reader(tmp_path / name, **limits)
            with pytest.raises(InputError) as told:
                there.open_reader(tmp_path / name, **limits)
            assert str(told.value) == str(here.value)


def test_which_files_it_takes(tmp_path: Path, nothing_left: None) -> None:
    rgb = Image.new("RGB", (40, 30))
    rgb.save(tmp_path / "a.gif", save_all=True, append_images=[Image.new("RGB", (40, 30), "red")])
    rgb.save(tmp_path / "a.png")
    (tmp_path / "odd.png").write_bytes((tmp_path / "a.png").read_bytes()[:-4])
    with Sandbox("on") as on, Sandbox("auto") as auto, Sandbox("off") as off:
        on.open_reader(tmp_path / "a.gif").close()
        auto.open_reader(tmp_path / "a.png").close()
        off.open_reader(tmp_path / "odd.png").close()
        assert (len(on._all), len(auto._all), len(off._all)) == (1, 0, 0)
        auto.open_reader(tmp_path / "odd.png").close()
        assert len(auto._all) == 1


def whole(path: Path) -> bool:
    with Opened(path) as opened:
        return looks_whole(opened)


def test_whole_files_look_whole(tmp_path: Path) -> None:
    for name, path in pictures(tmp_path).items():
        assert whole(path), name
        if path.suffix in (".png", ".jpg", ".webp", ".bmp", ".tif", ".gif"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // (4 if name == "several.tif" else 2)])
            assert not whole(path), name
    flipped = bytearray(io.BytesIO((tmp_path / "rgb.png").read_bytes()).getvalue())
    flipped[20] ^= 1  # in the size
    (tmp_path / "flipped.png").write_bytes(flipped)
    assert not whole(tmp_path / "flipped.png")
    with Sandbox("auto") as auto:
        assert auto.takes(tmp_path / "flipped.png")
        assert not auto.takes(tmp_path / "missing.png")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("aborts", "its decoder crashed (SIGABRT); leave it out, or convert it with another program"),
        ("crashes", "its decoder crashed (SIGSEGV); leave it out"),
        ("leaves", "its decoder ended with code 0; leave it out"),
        ("greedy", "its decoder asks for more memory than a picture of its size needs; leave it out"),
        ("hangs", "its decoder took more than 1.5 seconds and was stopped; leave it out"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell ends of processes otherwise")
def test_a_bad_decoder_costs_its_item(
    name: str,
    told: str,
    bad_decoder: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "hangs":
        monkeypatch.setattr(sandbox_process, "LEAST_SECONDS", 1.5)
    (tmp_path / "in").mkdir()
    for each in ("a", "b", name, "y", "z"):
        Image.new("RGB", (40, 32)).save(tmp_path / "in" / f"{each}.png")
    events: list[Event] = []
    done = run_job(
        Job("encode", (str(tmp_path / "in"),), output=str(tmp_path / "out"), sandbox="on"),
        events.append,
        StandIn(),  # type: ignore[arg-type]
    )
    assert (done.done, done.failed) == (4, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert told in failed.error
    assert "\n" not in failed.error
    assert isinstance(failed.cause, InputError)
    assert {event.input.stem for event in events if isinstance(event, ItemDone)} == {"a", "b", "y", "z"}
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks for processes as Linux does")
def test_what_libraries_print_is_no_answer(bad_decoder: None, tmp_path: Path, capfd: Any) -> None:
    Image.new("RGB", (40, 32)).save(tmp_path / "prints.png")
    with Sandbox("on") as there:
        assert there.open_reader(tmp_path / "prints.png") is not None
    assert capfd.readouterr() == ("", "")


def test_a_process_that_an_earlier_file_damaged(bad_decoder: None, tmp_path: Path) -> None:
    """Its next file is tried again in a new one."""
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 32)).save(tmp_path / name)
    with Sandbox("on") as there:
        there.open_reader(tmp_path / "a.png")
        (worker,) = there._all
        worker._process.kill()
        held: list[int] = []
        assert there.open_reader(tmp_path / "b.png", hold=held.append) is not None
        assert (len(held), worker in there._all) == (1, False)


def test_a_run_that_ends_waits_for_nobody(bad_decoder: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (40, 32)).save(tmp_path / "hangs.png")
    told: list[Exception] = []
    asked, ask = threading.Event(), sandbox_process.DecoderProcess.ask
    monkeypatch.setattr(sandbox_process.DecoderProcess, "ask", lambda *given: asked.set() or ask(*given))

    def read(there: Sandbox) -> None:
        try:
            there.open_reader(tmp_path / "hangs.png")
        except InputError as error:
            told.append(error)

    with Sandbox("on") as there:
        thread = threading.Thread(target=read, args=(there,))
        thread.start()
        assert asked.wait(60)
        time.sleep(0.3)
    thread.join(5)
    assert (thread.is_alive(), len(told)) == (False, 1)


def test_a_process_that_does_not_start(monkeypatch: pytest.MonkeyPatch, nothing_left: None, tmp_path: Path) -> None:
    Image.new("RGB", (4, 2)).save(tmp_path / "a.png")
    for command in ((sys.executable, "-c", "raise SystemExit(3)"), (str(tmp_path / "missing"),)):
        monkeypatch.setattr(sandbox_process, "COMMAND", command)
        with Sandbox("on") as there, pytest.raises(UsageError, match=r"does not start .*; --sandbox off does without"):
            there.open_reader(tmp_path / "a.png")


@pytest.mark.skipif(sys.platform != "linux", reason="where pipes can be widened")
def test_pixels_come_in_few_pieces(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    process = sandbox_process.DecoderProcess()
    try:
        assert fcntl.fcntl(process._answers, fcntl.F_GETPIPE_SZ) == 1 << 20
    finally:
        process.end()
    monkeypatch.setattr(sandbox_process, "_PIPE_BYTES", 1 << 40)  # more than anybody may have
    sandbox_process.DecoderProcess().end()


def test_the_process_ends_with_its_questions_and_needs_no_pytorch() -> None:
    """So it does when this process is killed."""
    script = "import sys\nfrom tvae.pipeline.media import sandbox_worker\nprint('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-P", "-c", script], text=True) == "False\n"
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert receive(process.stdout) == {"ready": True}
        process.stdin.close()
        assert process.wait(10) == 0


def test_an_unknown_mode() -> None:
    with pytest.raises(UsageError, match="sandbox 'maybe' is not one of auto, on, off"):
        Job("encode", ("a",), sandbox="maybe")  # type: ignore[arg-type]
