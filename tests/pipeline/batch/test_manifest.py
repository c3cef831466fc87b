"""A line for each output, whole or absent, whatever ends the run that writes it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from job_files import NAME

from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.manifest_lines import line_for, read_manifest
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.jobs.facts import facts_of


def output(folder: Path, name: str, content: bytes = b"x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / NAME).read_bytes().splitlines()]


def test_lines(tmp_path: Path) -> None:
    with Manifest(tmp_path) as manifest:
        manifest.done(output(tmp_path, "a.png", b"abc"), {"source": "ä\n"})
        manifest.done(output(tmp_path, "sub/b.latents/index.json", b"{}").parent, {})
        assert [line["output"] for line in lines(tmp_path)] == ["a.png", "sub/b.latents"], "as they are completed"
    first, second = lines(tmp_path)
    assert first["sha256"] == hashlib.sha256(b"abc").hexdigest()
    assert (first["bytes"], first["source"]) == (3, "ä\n")
    assert second["sha256"] == hashlib.sha256(b"{}").hexdigest(), "the index has the checksums of all parts"
    assert read_manifest(tmp_path / NAME).keys() == {"a.png", "sub/b.latents"}
    assert sorted(os.listdir(tmp_path)) == ["a.png", NAME, "sub"]


def test_what_is_known_is_known_by_size_and_time(tmp_path: Path) -> None:
    path = output(tmp_path, "a.png", b"abc")
    with Manifest(tmp_path) as manifest:
        assert not manifest.knows(path)
        manifest.done(path, {"fingerprint": "ab"})
        assert not manifest.knows(path), "a run does not ask what it has done itself"
    with Manifest(tmp_path) as manifest:
        assert manifest.knows(path)
        assert manifest.says(path, lambda: "ab")
        assert not manifest.says(path, lambda: "abc")
        path.write_bytes(b"abcd")
        assert not manifest.knows(path)
        assert not manifest.says(path, lambda: "ab")
        assert not manifest.knows(tmp_path / "none.png")
        path.unlink()
        assert not manifest.knows(path)


def test_an_output_that_was_made_again_has_one_line(tmp_path: Path) -> None:
    path = output(tmp_path, "a.png", b"abc")
    with Manifest(tmp_path) as manifest:
        manifest.done(path, {"seconds": 1})
        manifest.done(output(tmp_path, "b.png"), {})
        path.write_bytes(b"abcd")
        manifest.done(path, {"seconds": 2})
        assert len(lines(tmp_path)) == 3
    found = {line["output"]: line for line in lines(tmp_path)}
    assert len(lines(tmp_path)) == 2
    assert found["a.png"]["seconds"] == 2


@pytest.mark.parametrize("seed", range(20))
def test_what_a_kill_or_damage_leaves_is_mended(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with Manifest(tmp_path) as manifest:
        for n in range(10):
            manifest.done(output(tmp_path, f"{n}.png", bytes(n)), {"n": n})
    path = tmp_path / NAME
    data = bytearray(path.read_bytes())
    whole = data.splitlines(keepends=True)
    if seed % 2:
        del data[chance.randrange(1, len(data)) :]
    else:  # beyond the mark, without which it is no manifest of ours
        data[chance.randrange(30, len(data) - 1)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    kept = {whole.index(line) for line in data.splitlines(keepends=True) if line in whole}
    assert {line["n"] for line in read_manifest(path).values()} == kept
    with Manifest(tmp_path) as manifest:
        for n in range(10):
            if not manifest.knows(tmp_path / f"{n}.png"):
                manifest.done(tmp_path / f"{n}.png", {"n": n})
    assert sorted(line["n"] for line in lines(tmp_path)) == [*range(10)]
    assert len(read_manifest(path)) == 10


def test_what_is_no_line_is_left_out(tmp_path: Path) -> None:
    """Among lines of ours. Of a file without any nothing is changed: ``test_files_of_the_user.py``."""
    with Manifest(tmp_path) as manifest:
        manifest.done(output(tmp_path, "a.png"), {})
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'null\n{"output": 3}\n{"output": "a", "checksum": "0"}\n\xff\n' + b"[" * 9999)
    assert read_manifest(tmp_path / NAME).keys() == {"a.png"}
    with Manifest(tmp_path) as manifest:
        manifest.done(output(tmp_path, "b.png"), {})
    assert len(lines(tmp_path)) == 2
    assert read_manifest(tmp_path / "none") == {}


def test_latents_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "b.latents").mkdir()
    for path in (output(tmp_path, "a.safetensors", b"damaged"), tmp_path / "b.latents", output(tmp_path, "c.png")):
        assert facts_of(path) == {}


def test_one_run_writes_it(tmp_path: Path) -> None:
    with Manifest(tmp_path):
        found: list[BaseException] = []

        def other() -> None:
            try:
                with Manifest(tmp_path):
                    pass
            except UsageError as error:
                found.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert "--shard" in str(found[0])
        with Manifest(tmp_path, Shard(1, 2)) as part:
            part.done(output(tmp_path, "a.png"), {})
    assert len(read_manifest(tmp_path / "manifest-1-of-2.jsonl")) == 1
    with Manifest(tmp_path):
        pass


def test_a_run_that_makes_nothing_leaves_none(tmp_path: Path) -> None:
    with Manifest(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(OutputError, match=r"manifest\.jsonl"), Manifest(tmp_path):
        pass
    with Manifest(tmp_path, Shard(1, 2)) as manifest, pytest.raises(OutputError, match="cannot read"):
        manifest.done(tmp_path / "gone.png", {})


KILLED = """
import sys
from pathlib import Path
from tvae.pipeline.jobs.facts import facts_of
from tvae.pipeline.batch.manifest import Manifest
folder = Path(sys.argv[1])
with Manifest(folder) as manifest:
    for n in range(100000):
        path = folder / f"{n}.png"
        path.write_bytes(b"x" * n)
        if not manifest.knows(path):
            manifest.done(path, {"n": n, "long": "y" * 500})
        if n == 5:
            print("begun", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_a_killed_run_leaves_lines_that_are_whole(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    before = read_manifest(tmp_path / NAME)
    assert len(before) >= 6
    with Manifest(tmp_path) as manifest:
        for path in tmp_path.glob("*.png"):
            if not manifest.knows(path):
                manifest.done(path, {})
    found = read_manifest(tmp_path / NAME)
    assert found.keys() == {path.name for path in tmp_path.glob("*.png")}
    assert len(lines(tmp_path)) == len(found)


@pytest.mark.long
def test_a_long_manifest_takes_little_memory(tmp_path: Path) -> None:
    """To read it and to write it anew: of a million lines of 2 KB all would be 2 GB."""
    count = 4000
    with (tmp_path / NAME).open("wb") as file:
        for n in range(count):
            file.write(line_for(f"{n:06}.png", {"bytes": n, "time": n, "source": "x" * 2000}))
        file.write(line_for("000000.png", {"bytes": 7, "time": 7}))
    tracemalloc.start()
    with Manifest(tmp_path):
        pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 800 * count
    found = lines(tmp_path)
    assert len(found) == count
    assert [line["bytes"] for line in found] == [*range(1, count), 7]
