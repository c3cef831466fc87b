"""Names and messages are shown without what would move the cursor, and stdout may be full."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from program import invoke
from slow_but import slow_but
from typer.testing import Result

from tvae.cli.columns import show_table
from tvae.cli.reporting import one_line, printable

Tvae = Callable[..., Result]


def test_what_is_escaped() -> None:
    assert printable("a\x1b[31m\nb\r\x07\x9b") == "a\\x1b[31m\\nb\\r\\x07\\x9b"
    assert printable("a\u202eb\u2066\u2028\udcff") == "a\\u202eb\\u2066\\u2028\\udcff"
    for plain in "ä photo.jpg", "写真\u3000一.png", "Screenshot 1\u202fPM.png", "\U0001f469\u200d\U0001f680.png":
        assert printable(plain) == plain
    assert one_line("two\n  lines\x1b]0;x\x07") == "two lines\\x1b]0;x\\x07"


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
def test_names_in_every_line(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    photo.rename(folder / "a\x1b[31m\nb.png")
    (folder / "bad\x1b[2J\n.png").write_bytes(b"x")
    for more in ([], ["-n"], ["-v"]):
        result = tvae("encode", folder, "-o", tmp_path / "out", *more)
        for text in result.stdout, result.stderr:
            assert "\x1b" not in text
            assert all("b.png" not in line or "a\\x1b[31m\\nb.png" in line for line in text.splitlines())
    shown = tvae("inspect", tmp_path / "out" / "a\x1b[31m\nb.png.safetensors")
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
def test_names_in_what_other_commands_tell(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    own = tmp_path / "p\x1b[31m.toml"
    exported = tvae("preset", "export", "cpu").stdout
    title = next(line for line in exported.splitlines() if line.startswith("title"))
    own.write_text(exported.replace(title, 'title = "T\\u001b[2J\\n\\u202e"'))
    (spill := tmp_path / "s\x1b[2J\n").mkdir()
    (latents := tmp_path / "l\x1b[2J\n.safetensors").write_bytes(b"x")
    for arguments in (
        ("preset", "show", own),
        ("preset", "export", own),
        ("plan", photo, "--spill", spill, "-v"),
        ("verify", latents),
        ("doctor",),
        ("inspect", photo),
        ("bench", "io", photo),
    ):
        result = tvae(*arguments)
        for text in result.stdout, result.stderr:
            assert not any(character in text for character in "\x1b\u202e"), arguments
    shown = tvae("preset", "show", own)
    assert "T\\x1b[2J\\n\\u202e" in shown.stdout


def test_cells_of_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("name",), [("b\x1b[2J\nc",)])
    assert "b\\x1b[2J\\nc" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes")
def test_names_that_are_not_utf8(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    photo.rename(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png"))
    assert tvae("encode", folder, "-o", tmp_path / "out").exit_code == 0
    result = tvae("decode", tmp_path / "out", "-o", tmp_path / "back")
    assert result.exit_code == 0, result.output
    (back,) = os.listdir(os.fsencode(tmp_path / "back"))
    assert back == b"\xff\xfe.png"


@pytest.mark.skipif(os.name == "nt", reason="needs links")
@pytest.mark.parametrize("recursive", [False, True])
def test_a_loop_of_links_and_a_closed_folder(
    recursive: bool, tvae: Tvae, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").symlink_to("b.png")
    (tmp_path / "b.png").symlink_to("a.png")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def closed(folder: str | Path) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", closed)
    more = ["--recursive"] if recursive else []
    result = tvae("encode", tmp_path, *more, "-o", tmp_path / "out", "--no-progress")
    assert result.exit_code == 3
    assert (tmp_path / "out" / "photo.png.safetensors").is_file()
    assert sum("Too many levels of symbolic links" in line for line in result.stderr.splitlines()) == 2
    assert result.stderr.count("this folder cannot be read: Permission denied") == recursive


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("more", slow_but([[]], [[], ["--json"]]))
def test_a_full_stdout(more: list[str], tmp_path: Path) -> None:
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "a.png")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tvae.cli", "inspect", "a.png", *more],
            **{"cwd": tmp_path, "stdout": full, "stderr": subprocess.PIPE, "text": True},
        )
    assert done.returncode == 3, done.stderr
    assert done.stderr == "tvae: cannot write to standard output: No space left on device; check where it goes\n"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_on_a_full_disk_does_not_end_the_work(tmp_path: Path) -> None:
    """Every line of the run and those after it are lost, and no result is."""
    for name in "ab":
        Image.fromarray(np.zeros((16, 16, 4), np.uint8)).save(tmp_path / f"{name}.png")
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "tvae.cli", "encode", "a.png", "b.png", "-o", "out"]
        assert subprocess.run(words, cwd=tmp_path, stderr=full, check=False).returncode == 0
    assert len([*(tmp_path / "out").iterdir()]) == 2


@pytest.mark.parametrize("name", ["list.txt", "/dev/zero"])
def test_a_list_of_names_that_end_in_zeros(name: str, tvae: Tvae, tmp_path: Path) -> None:
    """As ``find -print0`` gives them; a list that never ends is not read to its end."""
    (tmp_path / "list.txt").write_bytes(b"a.png\0b.png\0")
    if not (tmp_path / name).exists():
        pytest.skip("has no such device")
    result = tvae("encode", "-a", tmp_path / name, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "one name a line, and this one has zero bytes" in " ".join(result.stderr.split())


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes")
def test_what_failed_is_found_by_its_list(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    """Names of bytes that are not UTF-8, of two lines, and with what patterns and comments have."""
    (folder := tmp_path / "in").mkdir()
    names = [b"\xff\xfe.png", b"two\nlines[1].png", b"#1.png", b" *.png", "\u3000.png".encode()]
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(b"nothing")
    (tmp_path / "job.toml").write_text("operation = 'encode'\ninputs = 'in'\noutput = 'out'\n")
    assert tvae("batch", tmp_path / "job.toml", "--failed-list", tmp_path / "failed.txt").exit_code == 3
    for name in names:
        shutil.copy(photo, os.path.join(os.fsencode(folder), name))
    assert tvae("encode", "-a", tmp_path / "failed.txt", "-o", tmp_path / "out").exit_code == 0
    assert {*os.listdir(os.fsencode(tmp_path / "out"))} >= {name + b".safetensors" for name in names}
    (tmp_path / "list.toml").write_text("operation = 'encode'\nlist = 'failed.txt'\noutput = 'out2'\n")
    result = tvae("batch", tmp_path / "list.toml")
    assert (result.exit_code, len(names)) == (0, len([*(tmp_path / "out2").glob("*.safetensors")])), result.output


def test_names_in_a_list_may_have_what_is_no_end_of_a_line(tvae: Tvae, tmp_path: Path) -> None:
    names = ["a\u2028b.png", "c\x85d.png", "e\x1cf.png"] if os.name == "posix" else ["a\u2028b.png"]
    for name in names:
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "list.txt").write_text("".join(f"{tmp_path / name}\n" for name in names), encoding="utf-8")
    assert tvae("encode", "-a", tmp_path / "list.txt", "-o", tmp_path / "out").exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{name}.safetensors" for name in names}


@pytest.mark.parametrize(
    "words",
    [
        ("encode", "PHOTO", "-o", "LONG"),
        ("roundtrip", "PHOTO", "-o", "LONG.png"),
        ("cache", "PHOTO", "-o", "LONG", "--for", "kohya", "--arch", "sdxl", "--vae", "LONG"),
        ("convert", "LONG", "x.npz"),
        ("convert", "PHOTO", "LONG.npz"),
        ("inspect", "LONG"),
        ("verify", "LONG"),
    ],
    ids=lambda words: words[0],
)
def test_names_longer_than_a_file_can_have(
    tvae: Tvae, photo: Path, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tvae(*(word.replace("PHOTO", str(photo)).replace("LONG", "y" * 300) for word in words))
    assert result.exit_code in (2, 3), result.stderr
    assert "internal error" not in result.stderr
    assert "y" * 300 in result.stderr or "no latents" in result.stderr or "not latents" in result.stderr


def test_a_tilde_before_no_users_name_is_a_letter(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo.rename(tmp_path / "~back.png")
    (tmp_path / "list.txt").write_text("~back.png\n")
    for key, name in (("inputs", "~back.png"), ("listed", "~back.png"), ("list", "list.txt")):
        (tmp_path / "job.toml").write_text(f"operation = 'encode'\n{key} = '{name}'\noutput = '~out-{key}'\n")
        result = invoke(["batch", "job.toml"])
        assert result.exit_code == 0, result.stderr
        assert (tmp_path / f"~out-{key}" / "~back.png.safetensors").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encode", "photo.png", "-o", "out", "--vae", "~nouser/x"], "no VAE '~nouser/x': no such folder or file"),
        (["encode", "photo.png", "-o", "out", "--preset", "~nouser.toml"], "cannot read preset '~nouser.toml'"),
        (["batch", "inputs.toml"], "~nouser.png does not exist"),
        (["batch", "list.toml"], "cannot read the list ~nouser.txt"),
    ],
)
def test_an_absent_name_that_begins_with_a_tilde(
    words: list[str], message: str, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inputs.toml").write_text("operation = 'encode'\ninputs = '~nouser.png'\noutput = 'out'\n")
    (tmp_path / "list.toml").write_text("operation = 'encode'\nlist = '~nouser.txt'\noutput = 'out'\n")
    result = invoke(words)
    assert result.exit_code == 2, result.stderr
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()
