"""A manifest that several runs add to: a line for each output, whatever the others do."""

from __future__ import annotations

import json
import os
import random
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from job_files import NAME

from tvae.pipeline.batch import manifest, manifest_lines, shared_manifest
from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.manifest_lines import line_for
from tvae.pipeline.batch.shared_manifest import SharedManifest
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.files.lock import one_writer


def output(folder: Path, name: str, content: bytes = b"x") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / NAME).read_bytes().splitlines()]


def test_several_runs_share_a_manifest(tmp_path: Path) -> None:
    """Here as writers of one process, whose calls come in any order, with half lines of others that were killed."""
    chance = random.Random(6)
    for turn in range(6):
        folder = tmp_path / str(turn)
        folder.mkdir()
        made: set[str] = set()
        with ExitStack() as stack:
            writers = [stack.enter_context(SharedManifest(folder)) for _ in range(3)]
            for _ in range(60):
                name, writer = f"{chance.randrange(12)}.png", chance.choice(writers)
                if chance.randrange(3) == 0 or name not in made:
                    output(folder, name, chance.randbytes(chance.randrange(1, 99)))
                    made.add(name)
                writer.done(folder / name, {"turn": turn})
                if chance.randrange(5) == 0:
                    with (folder / NAME).open("ab") as file:
                        file.write(b'{"output": "half a')
                if chance.randrange(9) == 0:
                    with SharedManifest(folder):
                        pass  # it leaves out what does not count
        found = lines(folder)
        assert {line["output"] for line in found} == made
        assert len(found) == len(made)
        assert all(line["bytes"] == (folder / line["output"]).stat().st_size for line in found)


def test_what_another_run_has_told_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reading the output again."""
    path = output(tmp_path, "a.png")
    with SharedManifest(tmp_path) as first, SharedManifest(tmp_path) as second:
        assert not second.knows(path)
        first.done(path, {"seconds": 1})
        monkeypatch.setattr(manifest_lines, "of_file", lambda _path: pytest.fail("it is read"))
        assert second.knows(path)
        path.write_bytes(b"longer")
        assert not second.knows(path)
        assert not second.knows(tmp_path / "none.png")
    assert [line["seconds"] for line in lines(tmp_path)] == [1]


def test_a_line_is_read_once_and_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the whole is written again only where a line does not count, and is on the disk when a run ends."""
    read, parse = list[bytes](), manifest_lines.parse_json
    flushed = list[Path]()
    monkeypatch.setattr(manifest_lines, "parse_json", lambda data: read.append(data) or parse(data))
    monkeypatch.setattr(manifest, "write_anew", lambda _path: pytest.fail("it is written again"))
    monkeypatch.setattr(shared_manifest, "flush_file", flushed.append)
    with SharedManifest(tmp_path) as first, SharedManifest(tmp_path) as second:
        for n in range(20):
            path, one, other = output(tmp_path, f"{n}.png"), *((first, second) if n % 2 else (second, first))
            for run in (one, one, other):
                run.done(path, {})
    assert len(lines(tmp_path)) == 20
    assert len(read) == 20, "each by the run that did not write it"
    assert flushed == [tmp_path / NAME] * 2


def test_lines_after_a_damaged_part_stay(tmp_path: Path) -> None:
    """As a power cut may leave zeros in the middle: only what is torn at the end is cut off."""
    with SharedManifest(tmp_path) as first, SharedManifest(tmp_path) as second:
        first.done(output(tmp_path, "a.png"), {})
        with (tmp_path / NAME).open("ab") as file:
            file.write(bytes(3 << 20) + b"\n" + line_for("b.png", {"bytes": 1, "time": 2}) + b'{"output": "c')
        second.done(output(tmp_path, "d.png"), {})
        first.done(output(tmp_path, "e.png"), {})
    assert [line["output"] for line in lines(tmp_path)] == ["a.png", "b.png", "d.png", "e.png"]


def test_a_file_that_another_run_has_written_anew_is_read_again(tmp_path: Path) -> None:
    """Also where it has grown beyond what was read of it, under the same number of its file system."""
    with SharedManifest(tmp_path) as run:
        for n in range(4):
            run.done(output(tmp_path, f"{n}.png", bytes(n)), {})
        with (tmp_path / NAME).open("r+b") as file:
            _first, *rest = file.readlines()
            file.seek(0)
            file.truncate()
            file.writelines([*rest, *(line_for(f"{n}.png", {"bytes": n, "time": 1}) for n in range(4, 9))])
        run.done(output(tmp_path, "9.png"), {})
        assert run.knows(tmp_path / "3.png")
        run.done(tmp_path / "0.png", {})
        assert [line["output"][0] for line in lines(tmp_path)] == [*"1234567890"]
        (tmp_path / NAME).unlink()
        run.done(tmp_path / "3.png", {})
        assert not run.knows(tmp_path / "missing.png")
    assert [line["output"] for line in lines(tmp_path)] == ["3.png"]


def test_a_run_that_has_it_for_itself_is_told_of_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are waited for: those that share it hold it for a line, or to read a million."""
    monkeypatch.setattr(shared_manifest, "_SOON", 0.05)
    path = output(tmp_path, "a.png")
    with SharedManifest(tmp_path) as run:
        with Manifest(tmp_path), pytest.raises(UsageError, match="a run without --claim writes"):
            run.done(path, {})
        held = ExitStack()
        held.enter_context(one_writer(tmp_path / NAME, 0))
        threading.Timer(0.3, held.close).start()
        run.done(path, {})
        monkeypatch.setattr(shared_manifest, "_PATIENCE", 0.05)
        with one_writer(tmp_path / NAME, 0), pytest.raises(OutputError, match="has held"):
            run.done(output(tmp_path, "b.png"), {})
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", NAME]
    assert [line["output"] for line in lines(tmp_path)] == ["a.png"]


def test_files_of_the_users_are_left_alone_and_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("mine\n")
    with pytest.raises(UsageError, match="is not a manifest"), SharedManifest(tmp_path):
        pass
    assert os.listdir(tmp_path) == [NAME]
    assert (tmp_path / NAME).read_text() == "mine\n"
    (tmp_path / NAME).unlink()
    with SharedManifest(tmp_path) as run:
        run.done(output(tmp_path, "a.png"), {})
        (tmp_path / NAME).unlink()
        (tmp_path / NAME).mkdir()
        with pytest.raises(OutputError, match=r"cannot write .*manifest\.jsonl"):
            run.done(output(tmp_path, "b.png"), {})
        (tmp_path / NAME).rmdir()
    (tmp_path / NAME).mkdir()
    with pytest.raises(OutputError, match=r"manifest\.jsonl"), SharedManifest(tmp_path):
        pass


def test_a_run_that_makes_nothing_leaves_none(tmp_path: Path) -> None:
    with SharedManifest(tmp_path):
        pass
    assert os.listdir(tmp_path) == []
