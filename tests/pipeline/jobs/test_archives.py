"""Pictures and clips of archives: the latents that they have as files of their own, and nothing done twice."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files import staging
from tvae.pipeline.jobs import ItemDone, ItemFailed, ItemSkipped, Job, run_job
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Listed
from tvae.pipeline.jobs.reading import open_source
from tvae.pipeline.latents import open_latents
from tvae.pipeline.media.sandbox import Sandbox

Run = Callable[..., Any]


def pack(path: Path, files: list[tuple[str, bytes]], time: int = 1_700_000_000) -> Path:
    """Each member a second later than the one before."""
    with tarfile.open(path, "w") as archive:
        for number, (name, content) in enumerate(files):
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(content), time + number
            archive.addfile(header, io.BytesIO(content))
    return path


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    (tmp_path / "spill").mkdir()
    return tmp_path / "spill"


@pytest.fixture
def shard(tmp_path: Path, picture: Run, clip: Run) -> Path:
    """Three pictures, one of them in a folder, a clip, and texts."""
    files = [(f"{n}.png", picture(f"{n}.png", seed=n).read_bytes()) for n in range(2)]
    files += [
        ("d/2.png", picture("2.png", seed=2).read_bytes()),
        ("0.txt", b"a caption"),
        ("c.mkv", clip().read_bytes()),
    ]
    return pack(tmp_path / "photos.tar", files)


def latents_in(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): {name: value.tolist() for name, value in load_file(path).items()}
        for path in folder.rglob("*.safetensors")
    }


def test_members_have_the_latents_of_files(run: Run, shard: Path, spill: Path, tmp_path: Path) -> None:
    done, events = run("encode", shard, output=tmp_path / "out", spill=str(spill))
    assert (done.done, done.failed) == (4, 0)
    assert {str(event.input) for event in events if isinstance(event, ItemDone)} == {
        str(shard / name) for name in ("0.png", "1.png", "d/2.png", "c.mkv")
    }
    with tarfile.open(shard) as archive:
        archive.extractall(tmp_path / "loose" / "photos", filter="data")
    run("encode", tmp_path / "loose", output=tmp_path / "expected", recursive=True)
    assert latents_in(tmp_path / "out") == latents_in(tmp_path / "expected")
    assert len(latents_in(tmp_path / "out")) >= 4
    found = open_latents(tmp_path / "out/photos/d/2.png.safetensors").meta
    expected = open_latents(tmp_path / "expected/photos/d/2.png.safetensors").meta
    assert (found.source, found.fingerprint) == (expected.source, expected.fingerprint)
    assert not list(spill.iterdir())


def test_what_is_done_is_skipped_without_a_copy(
    run: Run, shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("encode", shard, output=tmp_path / "out")
    monkeypatch.setattr("tvae.pipeline.jobs.remote.fetching.staged", None)
    again, events = run("encode", shard, output=tmp_path / "out")
    assert (again.done, again.skipped, again.failed) == (0, 4, 0)
    assert sum(isinstance(event, ItemSkipped) for event in events) == 4
    planned, _ = run("encode", shard, output=tmp_path / "out", dry_run=True, exact=True)
    assert (planned.planned, planned.skipped) == (0, 4)


def test_a_member_that_was_replaced_is_made_again(run: Run, picture: Run, tmp_path: Path) -> None:
    first, second, other = (picture(f"{n}.png", seed=n, width=32 + 8 * n).read_bytes() for n in range(3))
    archive = pack(tmp_path / "a.tar", [("0.png", first), ("1.png", second)])
    run("encode", archive, output=tmp_path / "out")
    with tarfile.open(archive, "a") as opened:
        header = tarfile.TarInfo("2.png")
        header.size = len(other)
        opened.addfile(header, io.BytesIO(other))
    done, _ = run("encode", archive, output=tmp_path / "out")
    assert (done.done, done.skipped) == (1, 2)
    pack(archive, [("0.png", first), ("1.png", other), ("2.png", other)])
    done, events = run("encode", archive, output=tmp_path / "out")
    assert {event.input.name for event in events if isinstance(event, ItemSkipped)} == {"0.png"}


def test_members_without_times_of_their_own_have_that_of_the_archive(run: Run, picture: Run, tmp_path: Path) -> None:
    content = picture("0.png").read_bytes()
    for time, expected in ((10**18, (2, 0)), (10**18, (0, 2)), (2 * 10**18, (2, 0))):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name in ("0.png", "1.png"):
                header = tarfile.TarInfo(name)
                header.size = len(content)
                archive.addfile(header, io.BytesIO(content))
        os.utime(tmp_path / "a.tar", ns=(time, time))
        done, _ = run("encode", tmp_path / "a.tar", output=tmp_path / "out")
        assert (done.done, done.skipped) == expected


def test_captions_go_beside_the_results(run: Run, picture: Run, tmp_path: Path) -> None:
    one, two = (picture(f"{n}.png", seed=n).read_bytes() for n in range(2))
    texts = {"0.txt": b"a\r\ncaption\0", "0.json": b"{}", "d/1.seg.caption": b"\xff", "d/alone.txt": b"of nothing"}
    files = [("0.png", one), ("d/1.x.png", two), *texts.items(), ("0.npy", b"x"), ("../0.txt", b"x")]
    archive = pack(tmp_path / "a.tar", files, time=1_000_000_000)
    out = tmp_path / "out" / "a"
    for _ in range(2):
        done, _ = run("encode", archive, output=tmp_path / "out")
        assert done.failed == 0
        found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        expected = {name: text for name, text in texts.items() if name != "d/alone.txt"}
        assert {name: text for name, text in found.items() if not name.endswith(".safetensors")} == expected
    (out / "0.txt").write_bytes(b"of the user")
    (out / "0.json").unlink()
    run("encode", archive, output=tmp_path / "out")
    assert ((out / "0.txt").read_bytes(), (out / "0.json").read_bytes()) == (b"of the user", b"{}")
    run("encode", archive, output=tmp_path / "out", existing="overwrite")
    assert (out / "0.txt").read_bytes() == texts["0.txt"]
    pack(archive, [("0.png", one), ("0.txt", b"a new one")], time=1_100_000_000)
    run("encode", archive, output=tmp_path / "out")
    assert (out / "0.txt").read_bytes() == b"a new one"
    run("encode", archive, output=tmp_path / "named", naming="{hash}")
    assert not list((tmp_path / "named").rglob("*.txt"))


def test_a_file_over_which_a_process_ended_is_read_in_another(shard: Path, tmp_path: Path) -> None:
    job = Job("encode", (str(shard),), output=str(tmp_path / "out"), device="cpu")
    with Sandbox("auto") as sandbox:
        sandbox.distrust(shard / "0.png")
        for item in expand(job)[:2]:
            with open_source(item.path, job, 8, sandbox, member=item.member) as source:
                assert sandbox.takes(source.path) == (item.name == "0.png")


def test_bad_members_fail_alone(run: Run, picture: Run, tmp_path: Path) -> None:
    good = picture("a.png").read_bytes()
    archive = pack(
        tmp_path / "a.tar",
        [
            ("a.png", good),
            ("../b.png", good),
            ("a.png", good),
            ("c.png", good[:-40]),
            ("._a.png", b"x"),
            ("d.png", b""),
        ],
    )
    with tarfile.open(archive, "a") as opened:
        link = tarfile.TarInfo("l.png")
        link.type, link.linkname = tarfile.SYMTYPE, "a.png"
        opened.addfile(link)
    done, events = run("encode", archive, output=tmp_path / "out")
    assert (done.done, done.failed) == (1, 5)
    told = sorted(event.error for event in events if isinstance(event, ItemFailed))
    for part in ("'../b.png'", "'a.png' is left out: the archive has another", "'l.png'", "a.tar/c.png", "a.tar/d.png"):
        assert sum(part in line for line in told) == 1, (part, told)
    assert sorted(path.name for path in tmp_path.rglob("*.safetensors")) == ["a.png.safetensors"]


def test_an_archive_that_was_cut_off_gives_its_whole_members(run: Run, shard: Path, tmp_path: Path) -> None:
    with tarfile.open(shard) as archive:
        middle = archive.getmember("d/2.png").offset_data + 10
    os.truncate(shard, middle)
    done, events = run("encode", shard, output=tmp_path / "out")
    assert (done.done, done.failed) == (2, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.input == shard
    assert "cut off in its file 'd/2.png'" in failed.error


def test_an_archive_that_changes_meanwhile(run: Run, shard: Path, picture: Run, tmp_path: Path) -> None:
    def replaced(event: Any) -> None:
        if event.type == "run_started":
            pack(shard, [("x.png", b"y" * 5000)])

    failures: list[str] = []

    def hear(event: Any) -> None:
        replaced(event)
        if isinstance(event, ItemFailed):
            failures.append(event.error)

    done = run_job(Job("encode", (str(shard),), output=str(tmp_path / "out"), device="cpu"), hear)
    assert (done.done, done.failed) == (0, 4)
    assert all("changed while it was read" in line for line in failures)


@pytest.mark.long
def test_interrupted_and_run_again(shard: Path, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(event: Any) -> None:
        if isinstance(event, ItemDone):
            raise Stop

    def job(name: str) -> Job:
        return Job("encode", (str(shard),), output=str(tmp_path / name), device="cpu", batch=1)

    with pytest.raises(Stop):
        run_job(job("out"), stop)
    done = run_job(job("out"), lambda _: None)
    assert (done.done + done.skipped, done.failed) == (4, 0)
    assert done.skipped >= 1
    run_job(job("undisturbed"), lambda _: None)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "undisturbed").rglob("*.safetensors")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.safetensors")} == expected


def test_inputs_that_lead_to_archives(run: Run, picture: Run, tmp_path: Path) -> None:
    content = picture("0.png").read_bytes()
    (tmp_path / "shards" / "sub").mkdir(parents=True)
    for name in ("shards/a.tar", "shards/b.TAR", "shards/sub/c.tar"):
        pack(tmp_path / name, [("x.png", content)])
    run("encode", tmp_path / "shards", output=tmp_path / "1", recursive=True)
    assert latents_in(tmp_path / "1").keys() == {f"{n}/x.png.safetensors" for n in ("a", "b", "sub/c")}
    run("encode", tmp_path / "shards" / "*.tar", output=tmp_path / "2")
    assert latents_in(tmp_path / "2").keys() == {"a/x.png.safetensors"}
    named = tmp_path / "shards" / "a.tar" / "x.png"
    run("encode", named, output=tmp_path / "3")
    assert latents_in(tmp_path / "3").keys() == {"a/x.png.safetensors"}
    with pytest.raises(UsageError, match="no such image or video"):
        run("encode", tmp_path / "shards" / "a.tar" / "y.png", output=tmp_path / "3")
    done, _ = run("encode", output=tmp_path / "3", listed=(Listed(str(named)), Listed(str(named.with_name("y.png")))))
    assert (done.skipped, done.failed) == (1, 1)


def test_archives_without_pictures(run: Run, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz"):
        pass
    for archive, why in (
        (pack(tmp_path / "a.tar", [("a.txt", b"x")]), "no images or videos in this archive"),
        (tmp_path / "b.tar.gz", "b.tar.gz: is a packed archive"),
    ):
        done, events = run("encode", archive, output=tmp_path / "out")
        assert done.failed == 1
        assert sum(why in event.error for event in events if isinstance(event, ItemFailed)) == 1


def test_other_archives_in_a_folder_are_passed_over(run: Run, picture: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(picture().read_bytes())
    pack(folder / "texts.tar", [("a.txt", b"x")])
    (folder / "other.tar.gz").write_bytes(b"x")
    done, _ = run("encode", folder, output=tmp_path / "out")
    assert (done.done, done.failed) == (1, 0)


def test_decode_takes_no_archives(run: Run, shard: Path, tmp_path: Path) -> None:
    done, events = run("decode", shard, output=tmp_path / "out")
    assert done.failed == 1
    assert ["unpack it" in event.error for event in events if isinstance(event, ItemFailed)] == [True]


def test_roundtrip_of_a_clip_keeps_it(run: Run, shard: Path, spill: Path, shown: Run, tmp_path: Path) -> None:
    done, _ = run("roundtrip", shard, output=tmp_path / "out", spill=str(spill), crf=0)
    assert (done.done, done.failed) == (4, 0)
    expected = shown(tmp_path / "c.mkv")
    assert shown(tmp_path / "out/photos/c.mkv.mp4") == [(time, pytest.approx(level, abs=2)) for time, level in expected]
    assert not list(spill.iterdir())


def test_what_a_killed_process_left_is_removed(run: Run, shard: Path, spill: Path, tmp_path: Path) -> None:
    with staging.scratch_folder(str(spill)) as mine:
        (mine / "a.png").write_bytes(b"x")
        dead = spill / mine.name.replace(f"{os.getpid()}-", f"{2**22 + 5}-", 1)
        shutil.copytree(mine, dead)
        staging._remove_left.cache_clear()
        run("encode", shard, output=tmp_path / "out", spill=str(spill))
        assert mine.exists()
        assert not dead.exists()


def test_a_negative_size_fails_its_archive_alone(run: Run, picture: Run, tmp_path: Path) -> None:
    content = picture("0.png").read_bytes()
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, sizes in (("good.png", {}), ("bad.png", {"size": "-1536"})):
            header = tarfile.TarInfo(name)
            header.size, header.pax_headers = len(content), sizes
            archive.addfile(header, io.BytesIO(content))
    done, events = run("encode", tmp_path / "a.tar", picture("1.png"), output=tmp_path / "out")
    assert (done.done, done.failed) == (2, 1)
    (failure,) = [event for event in events if isinstance(event, ItemFailed)]
    assert "a.tar: is damaged after 1 files" in failure.error
