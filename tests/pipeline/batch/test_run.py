"""Steps, groups, retries and parts of a job, over images that are encoded by the built-in VAE on a CPU."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, NAME, checksums, outputs, photo

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.batch.report import write_reports
from tvae.pipeline.batch.retries import MOST_SECONDS
from tvae.pipeline.batch.run import Options, StepResult, run_batch
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import InputError, OutOfMemory, OutputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Notice
from tvae.pipeline.jobs.events import Retried
from tvae.pipeline.latents import open_latents
from tvae.pipeline.media import sandbox

Batch = Callable[..., Any]


def listed(folder: Path) -> set[str]:
    return {name for path in folder.glob("manifest*.jsonl") for name in read_manifest(path)}


def test_steps_follow_one_another(batch: Batch, photos: Path, tmp_path: Path) -> None:
    (first, second), events, _ = batch(ENCODE + DECODE)
    assert (first.done, second.done, first.failed, second.failed) == (9, 9, 0, 0)
    assert listed(tmp_path / "out") == {*checksums(tmp_path / "out")}
    found = read_manifest(tmp_path / "back" / NAME)
    assert found.keys() == {*checksums(tmp_path / "back")}
    assert {name: line["sha256"] for name, line in found.items()} == checksums(tmp_path / "back")
    line = read_manifest(tmp_path / "out" / NAME)["sub/7.png.safetensors"]
    assert line["source"] == str(photos / "sub/7.png")
    assert line["tensors"] == {"latents": [16, 2, 4]}
    assert line["fingerprint"] == open_latents(tmp_path / "out/sub/7.png.safetensors").meta.fingerprint
    again, events, _ = batch(ENCODE + DECODE)
    assert [(result.done, result.skipped) for result in again] == [(0, 9), (0, 9)]
    assert not any(isinstance(event, ItemDone) for event in events)


def test_a_clip_has_one_line(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_clip(tmp_path / "in" / "a.mp4", 20, sound=True)
    (first, second), _, _ = batch(ENCODE + DECODE)
    assert (first.done, second.done) == (1, 1)
    reader = open_latents(tmp_path / "out" / "a.mp4.latents")
    shapes = [part.tensors["latents"].shape for part in reader]
    (line,) = read_manifest(tmp_path / "out" / NAME).values()
    assert line["tensors"] == {"latents": [shapes[0][0], sum(shape[1] for shape in shapes), *shapes[0][2:]]}
    assert (line["kind"], line["frames"], line["fingerprint"]) == ("video", 20, reader.meta.fingerprint)
    (line,) = read_manifest(tmp_path / "back" / NAME).values()
    assert (line["output"], line["frames"]) == ("a.mp4", 20)


def test_a_cache_for_a_trainer(batch: Batch, photos: Path, tmp_path: Path) -> None:
    """Its files are those of the trainer; their lines name them."""
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    small = {"block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    AutoencoderKL(**blocks, **small, latent_channels=4).save_pretrained(tmp_path / "sd")
    text = ENCODE.replace("encode", "cache") + 'vae = "sd"\nsize = "64x64"\n'
    text += 'cache = {trainer = "kohya", architecture = "sd"}\n[[step.override]]\nmatch = "sub/*"\nsize = "128x128"\n'
    ((result,), _, _) = batch(text)
    assert (result.done, result.failed) == (9, 0)
    wide = {path.stem[0]: np.load(path)["latents"].shape[-1] for path in (tmp_path / "out").rglob("*.npz")}
    assert {name for name in wide if wide[name] > wide["0"]} == {*"678"}
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.npz")}
    assert read_manifest(tmp_path / "out" / NAME).keys() == files
    ((result,), _, _) = batch(text)
    assert (result.done, result.skipped) == (0, 9)
    assert len((tmp_path / "out" / NAME).read_bytes().splitlines()) == 9


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(OutputError, match=r"report\.json"):
        write_reports([StepResult("encode", str(tmp_path))], None)


def test_overrides_change_what_is_done_of_some(batch: Batch, photos: Path, tmp_path: Path) -> None:
    text = ENCODE + '[[step.override]]\nmatch = "sub/*"\nsize = "64x32"\nfit = "exact"\n'
    text += '[[step.override]]\nmatch = ["7.png", "1.png"]\nsize = "16x8"\n'
    ((result,), events, _) = batch(text.replace('fit = "exact"\n', ""))
    assert result.done == 9
    sizes = {}
    for path in (tmp_path / "out").rglob("*.safetensors"):
        (part,) = open_latents(path)
        sizes[path.name.partition(".")[0]] = tuple(part.tensors["latents"].shape[-2:])
    assert sizes == {**dict.fromkeys("02345", (2, 4)), "1": (1, 2), "6": (4, 8), "7": (1, 2), "8": (4, 8)}
    assert {event.index for event in events if isinstance(event, ItemDone)} == {*range(9)}, "numbers of the whole step"


@pytest.mark.parametrize("folder", ["plain", "a[1]", "b*"])
def test_patterns_and_lists_are_from_the_files_folder(folder: str, tmp_path: Path) -> None:
    if folder == "b*" and sys.platform == "win32":
        pytest.skip("no name of a folder there")
    for name in ("in/1.png", "in/2.jpg", "3.png", "elsewhere/4.png"):
        photo(tmp_path / folder / name, 1)
    photo(tmp_path / "a1" / "in" / "5.png", 1)  # which a[1] and b* would match as patterns
    (tmp_path / folder / "elsewhere" / "names.txt").write_text("4.png\n", encoding="utf-8")
    text = 'operation = "encode"\ndevice = "cpu"\ninputs = ["in/*.png", "[3].png"]\nlist = "elsewhere/names.txt"\n'
    (tmp_path / folder / "job.toml").write_text(text + 'output = "out"\n', encoding="utf-8")
    (result,) = run_batch(read_job_file(tmp_path / folder / "job.toml"), Options(), lambda _: None)
    assert result.done == 3
    assert {path.name[0] for path in outputs(tmp_path / folder / "out")} == {*"134"}


def test_a_dry_run_makes_nothing(batch: Batch, photos: Path, tmp_path: Path) -> None:
    (first, second), _, _ = batch(ENCODE + DECODE, dry_run=True)
    assert (first.planned, first.waits, second.planned, second.waits) == (9, False, 0, True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="does not exist"):
        batch(ENCODE + DECODE.replace('"out"', '"elsewhere"'), dry_run=True)


class Failing:
    """Reading this source fails so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, errors: list[BaseException | None]) -> None:
        self.errors, self.calls, opened = errors, 0, sandbox.open_here

        def open_here(path: Path, *more: Any, **named: Any) -> Any:
            if path.name == name:
                self.calls += 1
                error = self.errors.pop(0) if self.errors else None
                if error is not None:
                    raise error
            return opened(path, *more, **named)

        monkeypatch.setattr(sandbox, "open_here", open_here)


def test_what_can_pass_is_tried_again(
    batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OSError(errno.EIO, "input/output error"), MemoryError(), OutOfMemory("out of memory on cuda:0")]
    failing = Failing(monkeypatch, "3.png", [*errors])
    ((result,), events, waited) = batch(ENCODE, retries=3)
    assert (result.done, result.failed, result.retried) == (9, 0, 3)
    assert waited == [1.0, 2.0, 4.0]
    assert failing.calls == 4
    assert not any(isinstance(event, ItemFailed) for event in events), "it has not failed in the end"
    told = [event.message for event in events if isinstance(event, Notice)]
    assert len(told) == 3
    assert "tried again in 1 s" in told[0]
    line = read_manifest(tmp_path / "out" / NAME)["3.png.safetensors"]
    assert len(line["warnings"]) == 3


@pytest.mark.parametrize(
    "error", [InputError("it is damaged"), OSError(errno.ENOENT, "gone"), PermissionError(13, "no")]
)
def test_what_cannot_pass_is_not(error: Exception, batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(monkeypatch, "3.png", [error] * 9)
    ((result,), _, waited) = batch(ENCODE, retries=3)
    assert (result.done, result.failed, result.retried, waited) == (8, 1, 0, [])
    assert failing.calls == 1
    assert [failure["source"] for failure in result.failures] == [str(photos / "3.png")]


def test_tries_end(batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, "3.png", [OSError(errno.EIO, "input/output error")] * 20)
    ((result,), events, waited) = batch(ENCODE, retries=8)
    assert (result.done, result.failed, result.retried) == (8, 1, 8)
    assert waited == [1, 2, 4, 8, 16, 32, MOST_SECONDS, MOST_SECONDS]
    assert sum(isinstance(event, ItemFailed) for event in events) == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", ["wait", "next try"])
def test_what_waits_when_a_run_is_ended_has_failed(
    end: type[BaseException], at: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in no list: not done, and not failed either."""
    Failing(monkeypatch, "3.png", [OSError(errno.EIO, "lost")] * 9)
    Failing(monkeypatch, "4.png", [OSError(errno.EIO, "lost")])
    (tmp_path / "job.toml").write_text(ENCODE)
    waited, results = list[float](), list[Any]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if at == "wait":
            raise end

    def hear(event: Event) -> None:
        if at == "next try" and waited and isinstance(event, Retried):
            raise end

    with pytest.raises(end):
        run_batch(read_job_file(tmp_path / "job.toml"), Options(retries=3), hear, wait, results=results)
    (result,) = results
    failed = {failure["source"]: failure["error"] for failure in result.failures}
    names = {Path(name).name for name in failed}
    assert names == {"3.png", "4.png"} if at == "wait" else "3.png" in names
    assert all(error == "cannot be read: lost" for error in failed.values())
    assert (result.failed, result.done) == (len(failed), 9 - len(failed))


def test_one_item_alone_fails_as_among_others(batch: Batch, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.png").write_bytes(b"nothing")
    (first, second), _, _ = batch(ENCODE + ENCODE.replace('"out"', '"out2"'))
    assert (first.failed, second.failed) == (1, 1)


def test_as_many_failures_as_are_allowed(batch: Batch, photos: Path, tmp_path: Path) -> None:
    for n in range(4):
        (photos / f"{n}.png").write_bytes(b"nothing")
    results, events, _ = batch(ENCODE + DECODE, most_failures=2)
    assert [result.failed for result in results] == [2]
    assert sum(isinstance(event, ItemFailed) for event in events) == 2
    done = read_manifest(tmp_path / "out" / NAME)
    assert done.keys() == {*checksums(tmp_path / "out")}


def test_parts_make_what_the_whole_makes(batch: Batch, photos: Path, tmp_path: Path) -> None:
    batch(ENCODE)
    whole = checksums(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    done = [batch(ENCODE, shard=Shard(n, 3))[0][0].done for n in (2, 1, 3)]
    assert sum(done) == 9
    assert checksums(tmp_path / "out") == whole
    parts = [read_manifest(tmp_path / "out" / f"manifest-{n}-of-3.jsonl") for n in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(whole)


@pytest.mark.long
def test_latents_of_one_source_keep_their_names_in_parts(batch: Batch, photos: Path, tmp_path: Path) -> None:
    """Two of one source are told apart by their own names, also where each is in another part or group."""
    batch(ENCODE)
    for n in range(6):
        path = tmp_path / "out" / f"{n}.png.safetensors"
        path.with_name(f"again-{n}.safetensors").write_bytes(path.read_bytes())
    batch(DECODE)
    whole = checksums(tmp_path / "back")
    assert len(whole) == 15
    (tmp_path / "back").rename(tmp_path / "whole")
    for n in (1, 2, 3):
        batch(
            DECODE + '[[step.override]]\nmatch = "again-*"\nencoder_options = {compress_level = 6}\n', shard=Shard(n, 3)
        )
    assert {*checksums(tmp_path / "back")} == {*whole}
