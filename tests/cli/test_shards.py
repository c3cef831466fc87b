"""``tvae cache --for webdataset`` from the shell: exit codes, verify, one line for what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from program import invoke
from rich.console import Console
from shard_files import photo, samples_in

from tvae.cli.dashboard import Dashboard
from tvae.pipeline.jobs import ItemDone, ItemFailed, Progress, RunStarted


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for n in range(4):
        photo(Path(f"photos/{n}.png"), n)
    Path("photos/0.txt").write_text("a caption")


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


CACHE = ("cache", "photos", "-o", "out", "--vae", "builtin", "--size", "64x64", "--buckets", "off")


def test_two_runs_and_verify() -> None:
    words = (*CACHE, "--for", "webdataset", "--shards", "12KB")
    Path("photos/2.png").rename("photos/2.png.txt")
    Path("photos/2.png").write_bytes(b"no picture")
    code, out, told = call(*words, "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 3, told
    assert sum(event["type"] == "item_failed" for event in events) == 1
    outputs = {event["input"]: Path(event["output"]) for event in events if event["type"] == "item_done"}
    assert len(outputs) == 3
    assert all(path.is_file() and path.parent == Path("out") for path in outputs.values())
    Path("photos/2.png.txt").replace("photos/2.png")
    code, out, told = call(*words)
    assert (code, "1 done, 3 skipped" in told) == (0, True)
    found = samples_in(Path("out"))
    assert [one["key"] for one in found] == ["0", "1", "3", "2"]
    assert found[0]["txt"] == b"a caption"
    code, out, _ = call("verify", "out", "--source", "photos", "--vae", "builtin")
    assert (code, out) == (0, f"{len(set(outputs.values())) + 1} fine\n")
    photo(Path("photos/0.png"), 9)
    code, out, _ = call("verify", "out", "--source", "photos")
    assert (code, " stale: " in out, out.count("stale")) == (0, True, 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--for", "webdataset", "--shards", "much"], "'much' is not an amount"),
        (["--for", "webdataset", "--shards", "2TiB"], "at most 1099511627776 bytes"),
        (["--for", "webdataset", "--devices", "2"], "leave --devices and --claim out"),
        (["--for", "webdataset", "--arch", "sdxl"], "one of raw, model"),
        (["--for", "webdataset", "--no-upscale"], "leave --no-upscale out"),
        (["--for", "kohya", "--arch", "flux", "--shards", "1GB"], "reads a file of each source, and no shards"),
    ],
)
def test_refused_in_one_line(words: list[str], told: str) -> None:
    code, out, error = call(*CACHE, *words)
    assert (code, out) == (2, "")
    assert told in error
    assert len(error.splitlines()) == 1
    assert not Path("out").exists()


def test_other_options_are_refused_and_overwrite_replaces() -> None:
    assert call(*CACHE, "--for", "webdataset")[0] == 0
    before = Path("out/00000.tar").read_bytes()
    code, out, error = call(*CACHE, "--for", "webdataset", "--posterior", "mean")
    assert (code, out, len(error.splitlines())) == (2, "", 1)
    assert "made with other options; name another folder, or replace all its samples with --overwrite" in error
    assert Path("out/00000.tar").read_bytes() == before
    assert call(*CACHE, "--for", "webdataset", "--posterior", "mean", "--overwrite")[0] == 0
    assert samples_in(Path("out"))[0]["json"]["posterior"] == "mean"


def test_the_bar_counts_an_item_once() -> None:
    """Which may be computed long before its shard is complete."""
    dashboard = Dashboard(Console(file=io.StringIO()))
    dashboard.show(RunStarted("cache", 3))
    bar = dashboard._bars.tasks[0]
    for n in range(2):
        dashboard.show(Progress(Path("a"), n, 1, 1))
    assert bar.completed == 2
    dashboard.show(ItemDone(Path("a"), 0, Path("b"), 1, 0.1))
    dashboard.show(ItemFailed(Path("a"), 1, "lost"))
    dashboard.show(ItemDone(Path("a"), 2, Path("b"), 1, 0.1))
    assert bar.completed == 3
