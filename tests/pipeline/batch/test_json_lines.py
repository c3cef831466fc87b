"""Lists of JSON objects: inputs with options of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import DECODE, ENCODE, checksums, photo

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemDone
from tvae.pipeline.latents import open_latents

Batch = Callable[..., Any]
LINES = ENCODE.replace('inputs = "in"', 'jsonl = "items.jsonl"')


def listed(folder: Path, *items: Any) -> None:
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, items)) + "\n", encoding="utf-8")


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*.safetensors"):
        (part,) = open_latents(path)
        height, width = part.tensors["latents"].shape[-2:]
        found[path.name.partition(".")[0]] = (8 * width, 8 * height)
    return found


def test_each_has_its_own_options(batch: Batch, photos: Path, tmp_path: Path) -> None:
    wide, small = {"size": "64x16"}, {"size": "16x8"}
    items = [{"file": f"in/{n}.png", **options} for n, options in enumerate([wide, {}, small, wide])]
    listed(tmp_path, *items, {"file": "in/none.png", **wide}, {"file": "in/sub", **small})
    text = LINES + 'size = "32x32"\nfit = "stretch"\n[[step.override]]\nmatch = "2.png"\nsize = "8x8"\nseed = 3\n'
    ((result,), events, _) = batch(text)
    assert (result.done, result.failed) == (7, 1)
    assert result.failures[0]["error"] == f"{tmp_path}/in/none.png does not exist"
    big = {"0": (64, 16), "1": (32, 32), "2": (16, 8), "3": (64, 16)}
    assert sizes(tmp_path / "out") == big | dict.fromkeys("678", (16, 8))
    assert {event.index for event in events if isinstance(event, ItemDone)} == {0, 1, 2, 3, 5, 6, 7}
    ((result,), _, _) = batch(text)
    assert (result.done, result.skipped, result.failed) == (0, 7, 1)
    ((result,), _, _) = batch(text, dry_run=True)
    assert (result.planned, result.skipped, result.failed) == (0, 7, 1)
    listed(tmp_path, *items[:1], {**items[1], **small}, *items[2:])
    ((result,), _, _) = batch(text)
    assert (result.done, result.skipped) == (1, 3)


def test_the_bytes_are_those_of_a_step_for_each(batch: Batch, photos: Path, tmp_path: Path) -> None:
    options = [{"seed": n, "posterior": "sample", "size": f"{16 + 8 * n}x16"} for n in range(3)]
    steps = ""
    for n, own in enumerate(options):
        told = "".join(f"{key} = {json.dumps(value)}\n" for key, value in own.items())
        steps += f'[[step]]\noperation = "encode"\ninputs = "in/{n}.png"\noutput = "apart"\n{told}'
    batch(steps)
    listed(tmp_path, *({"file": f"in/{n}.png", **own} for n, own in enumerate(options)))
    batch(LINES)
    assert checksums(tmp_path / "out") == checksums(tmp_path / "apart")


def test_latents(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE)
    items = [{"file": f"out/{n}.png.safetensors", "encoder_options": {"compress_level": n}} for n in range(3)]
    listed(tmp_path, *items)
    ((result,), _, _) = batch(DECODE.replace('inputs = "out"', 'jsonl = "items.jsonl"'))
    assert result.done == 3


def test_named_twice(batch: Batch, photos: Path, tmp_path: Path) -> None:
    listed(tmp_path, {"file": "in/1.png", "seed": 1}, {"file": "in/../in/1.png", "seed": 1}, {"file": "in/2.png"})
    assert batch(LINES)[0][0].done == 2
    listed(tmp_path, {"file": "in/1.png", "seed": 1}, {"file": "in/1.png", "seed": 2})
    with pytest.raises(UsageError, match=r"1\.png is named twice, with different options"):
        batch(LINES)


@pytest.mark.long
def test_many_sets_of_options_take_no_look_at_each_other(tmp_path: Path) -> None:
    photo(tmp_path / "a.png", 1)
    listed(tmp_path, *({"file": f"{n}.png", "seed": n} for n in range(3000)))
    (tmp_path / "job.toml").write_text(LINES, encoding="utf-8")
    (step,) = read_job_file(tmp_path / "job.toml")
    assert (len(step.overrides), step.patterned) == (3000, 0)
    assert step.job_with((2999,)).seed == 2999


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"file": "a.png", "siz": "1x1"}', "line 2: unknown key 'siz'; did you mean 'size'?"),
        ('{"file": "a.png", "size": 3}', "line 2: size must be a size such as '1280x720', found 3"),
        ('{"file": "a.png", "fit": "cover", "strip": 0}', "line 2: strip 0 is too small"),
        ('{"file": "a.png", "recursive": true}', "line 2: unknown key 'recursive'"),
        ('{"size": "1x1"}', "line 2 names no input"),
        ('{"file": 3}', "line 2 names no input"),
        ('["a.png"]', "line 2 names no input"),
        ('{"file": "a.png"', "line 2 is no JSON"),
        ("[" * 5000, "line 2 is no JSON"),
    ],
)
def test_a_line_that_is_wrong_refuses_the_job(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text(f'{{"file": "in/0.png", "seed": 1}}\n{line}\n', encoding="utf-8")
    (tmp_path / "job.toml").write_text(LINES, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_job_file(tmp_path / "job.toml")
    assert told in str(caught.value)
    assert "items.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)
