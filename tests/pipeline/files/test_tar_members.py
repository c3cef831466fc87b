"""Archives as Python's own writer and webdataset's make them, whole, cut off anywhere, and made to do harm."""

from __future__ import annotations

import io
import os
import random
import sys
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.files import tar_members as listing
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.tar_members import Member, tar_members


def write_tar(path: Path, files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for number, (name, content) in enumerate(files.items()):
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(content), 1_700_000_000 + number
            archive.addfile(header, io.BytesIO(content))
    return path


def content_of(member: Member) -> bytes:
    return member.archive.path.read_bytes()[member.offset : member.offset + member.size]


def collected(path: Path) -> tuple[dict[str, bytes], str | None]:
    """The whole members, one by one, and what came after them."""
    found: dict[str, bytes] = {}
    try:
        for member in tar_members(path):
            found[member.name] = content_of(member)
    except InputError as error:
        return found, str(error)
    return found, None


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_the_writer(tmp_path: Path, form: int) -> None:
    draw = random.Random(form)
    files = {f"{'d/' * draw.randrange(4)}{n:03}.jpg": draw.randbytes(draw.randrange(3000)) for n in range(40)}
    if form != tarfile.USTAR_FORMAT:
        files["a long name " * 15 + ".png"] = b"x"
    path = write_tar(tmp_path / "a.tar", files, form)
    found = list(tar_members(path))
    assert {member.name: content_of(member) for member in found} == files
    assert [member.mtime_ns for member in found] == [(1_700_000_000 + n) * 10**9 for n in range(len(files))]
    assert all(member.problem is None for member in found)


def test_a_shard_of_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for n in range(3):
            sink.write({"__key__": f"k{n}", "jpg": bytes([n] * 100), "txt": f"caption {n}"})
    expected = {f"k{n}.jpg": bytes([n] * 100) for n in range(3)} | {f"k{n}.txt": b"caption %d" % n for n in range(3)}
    assert collected(tmp_path / "a.tar") == (expected, None)


def test_an_archive_cut_off_anywhere_gives_its_whole_members(tmp_path: Path) -> None:
    files = {f"{n}.jpg": bytes([n]) * (700 * n) for n in range(6)}
    whole = write_tar(tmp_path / "a.tar", files).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        ends = [(info.name, info.offset_data + info.size) for info in archive]
    last = max(end for _, end in ends)
    draw = random.Random(5)
    for cut in sorted({*range(0, len(whole), 512), *(draw.randrange(len(whole)) for _ in range(60))}):
        path = tmp_path / "cut.tar"
        path.write_bytes(whole[:cut])
        found, failure = collected(path)
        assert found == {name: files[name] for name, end in ends if end <= cut}
        if cut <= last:
            assert failure is not None
            assert "cut.tar" in failure


def test_damage_in_the_middle_is_told(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{n}.jpg": b"x" * 600 for n in range(4)})
    content = bytearray(path.read_bytes())
    content[2 * 1536 : 2 * 1536 + 512] = b"?" * 512  # the third header
    path.write_bytes(content)
    found, failure = collected(path)
    assert found.keys() == {"0.jpg", "1.jpg"}
    assert failure is not None
    assert "damaged" in failure


@pytest.mark.parametrize("name", ["../a.jpg", "/a.jpg", "a/../../b.jpg", "a//b.jpg", "a\\b.jpg", "C:a.jpg", "n" * 300])
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    first, second = tar_members(write_tar(tmp_path / "a.tar", {name: b"x", "good.jpg": b"y"}))
    assert first.problem is not None
    assert second.problem is None


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_what_is_no_file(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        header = tarfile.TarInfo("a.jpg")
        header.type, header.linkname = kind, "/etc/passwd"
        archive.addfile(header)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    (only,) = tar_members(tmp_path / "a.tar")
    assert only.problem is not None


@pytest.mark.parametrize("said", ["inf", "nan", "-5", "1e300"])
def test_times_that_are_none(tmp_path: Path, said: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        header = tarfile.TarInfo("a.jpg")
        header.pax_headers = {"mtime": said}
        archive.addfile(header)
    (only,) = tar_members(tmp_path / "a.tar")
    assert 0 <= only.mtime_ns < 2**63


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, b"Z"])
@pytest.mark.parametrize("size", [-1, -512, -1536, -2048, -(10**30)])
def test_a_negative_size_of_an_extended_header(tmp_path: Path, size: int, kind: bytes) -> None:
    """Some of them lead back to the member itself, or to the one before it."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("good.jpg"))
        header = tarfile.TarInfo("bad.jpg")
        header.type, header.pax_headers = kind, {"size": str(size)}
        archive.addfile(header)
        archive.addfile(tarfile.TarInfo("behind.jpg"))
    listed = islice(tar_members(tmp_path / "a.tar"), 100)
    assert next(listed).name == "good.jpg"
    with pytest.raises(InputError, match=r"a\.tar: is damaged after 1 files"):
        list(listed)


def test_a_header_that_would_fill_the_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 26
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate((1 << 26) + 4096)
    found, failure = collected(path)
    assert not found
    assert failure is not None
    assert "a header says" in failure


@pytest.mark.parametrize("content", [b"", b"no archive" * 200, b"\x1f\x8b" + b"x" * 2000, bytes(100)])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.tar"):
        list(tar_members(tmp_path / "a.tar"))


def test_any_bytes_fail_as_an_input(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", {"a" * 150 + ".jpg": b"x" * 900, "b.jpg": b"y"}).read_bytes()
    draw = random.Random(11)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        (tmp_path / "b.tar").write_bytes(content)
        collected(tmp_path / "b.tar")


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be replaced")
def test_an_archive_is_the_file_that_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever takes its place meanwhile: members would be read from that."""
    path, right = write_tar(tmp_path / "a.tar", {"a.png": b"old"}), open_regular
    before = path.stat()

    def opened(where: Path) -> Any:
        file = right(where)
        other = write_tar(tmp_path / "b.tar", {"a.png": b"new"})
        os.utime(other, ns=(1, 1))
        other.replace(path)
        return file

    monkeypatch.setattr(listing, "open_regular", opened)
    (member,) = tar_members(path)
    assert (member.archive.size, member.archive.mtime_ns) == (before.st_size, before.st_mtime_ns)
