"""An interrupted encode is continued: the result is that of a run that was not, and nothing is done twice."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from resumed import contents, first_frame, same, went_on
from slow_but import slow_but
from torch import Tensor

from tvae.pipeline.jobs import checkpoint
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]


@pytest.mark.long
@pytest.mark.parametrize(
    "after", [pytest.param(1, marks=pytest.mark.slow), 120, pytest.param(200, marks=pytest.mark.slow)]
)
def test_a_killed_encode_goes_on(
    run: Run, model: Run, killed: Run, source: Path, kind: str, tmp_path: Path, after: int
) -> None:
    """Samples: the generator, too, stands where it stood."""
    out, whole = tmp_path / "out", tmp_path / "whole" / "c.mkv.latents"
    run("encode", source, output=whole.parent, model=model(), posterior="sample")
    killed("encode", source, out, after, posterior="sample")
    folder = out / "c.mkv.latents"
    assert not (folder / "index.json").exists()
    kept = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("0*.safetensors")}
    second = model()
    done, events = run("encode", source, output=out, model=second, posterior="sample")
    assert done.done == 1, events
    assert same(folder, whole)
    assert [path.name for path in sorted(folder.iterdir())] == [path.name for path in sorted(whole.iterdir())]
    assert went_on(events) == (after > 1)
    if after == 1:
        return
    lead, part = (61, 64) if kind == "steps" else (16, 16)  # 1 + 15 * 4 frames are the first 16 latents
    writing = 2 * part if kind == "image" else 0  # put, but not yet written
    parts = 1 + (after - writing - lead) // part
    assert parts > 0
    assert len(second.shapes) <= (200 - lead - (parts - 1) * part + 3) // (4 if kind == "steps" else 1)
    now = {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.glob("0*.safetensors")}
    assert all(now[f"{n:06d}.safetensors"] == kept[f"{n:06d}.safetensors"] for n in range(parts))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_every_interruption(
    run: Run, model: Run, interrupted: Run, source: Path, tmp_path: Path, error: type[BaseException]
) -> None:
    run("encode", source, output=tmp_path / "whole", model=model(), posterior="sample")
    interrupted("encode", source, tmp_path / "out", 150, error, posterior="sample")
    _, events = run("encode", source, output=tmp_path / "out", model=model(), posterior="sample")
    assert went_on(events)
    assert same(tmp_path / "whole" / "c.mkv.latents", tmp_path / "out" / "c.mkv.latents")


def test_copies_of_the_last_frame_are_passed_over_too(
    run: Run, model: Run, clip: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted when all is computed; 70 frames are 73 in steps of 4."""
    source = clip(times=tuple(range(0, 70 * 40, 40)))
    run("encode", source, output=tmp_path / "whole", model=model())
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)
    with (
        patch("tvae.pipeline.media.sandbox.copy_here", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run("encode", source, output=tmp_path / "out", model=model())
    second = model()
    _, events = run("encode", source, output=tmp_path / "out", model=second)
    assert second.shapes == []
    assert went_on(events)
    assert same(tmp_path / "whole" / "c.mkv.latents", tmp_path / "out" / "c.mkv.latents")


CHANGED = ["options", "source", "overwrite", "part", "checkpoint", "no checkpoint"]


@pytest.mark.parametrize("change", slow_but(["source", "part", "checkpoint"], CHANGED))
def test_what_does_not_match_is_begun_anew(
    run: Run, model: Run, interrupted: Run, source: Path, tmp_path: Path, change: str
) -> None:
    out = tmp_path / "out"
    interrupted("encode", source, out, 150)
    folder = out / "c.mkv.latents"
    fields: dict[str, Any] = {}
    if change == "options":
        fields = {"space": "model"}
    elif change == "overwrite":
        fields = {"existing": "overwrite"}
    elif change == "source":
        os.utime(source, (1, 1))
    elif change == "part":
        (folder / "000000.safetensors").unlink()
    elif change == "checkpoint":
        path = folder / ".tvae-state.safetensors"
        path.write_bytes(path.read_bytes()[:100])
    else:
        (folder / ".tvae-state.safetensors").unlink()
    done, events = run("encode", source, output=out, model=model(), **fields)
    assert done.done == 1
    assert not went_on(events)
    assert first_frame(events) == 1
    run("encode", source, output=tmp_path / "whole", model=model(), **fields)
    assert same(tmp_path / "whole" / "c.mkv.latents", folder)


def test_an_older_clip_stays_while_its_successor_is_interrupted(
    run: Run, model: Run, interrupted: Run, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run("encode", source, output=out, model=model())
    before = contents(out / "c.mkv.latents")
    interrupted("encode", source, out, 150, space="model")
    after = contents(out / "c.mkv.latents")
    assert all(torch.equal(before[name], after[name]) for name in before)
    done, events = run("encode", source, output=out, model=model(), space="model")
    assert done.done == 1
    assert went_on(events)
    assert first_frame(events) > 61
    assert open_latents(out / "c.mkv.latents").meta.space.name == "model"
    assert not list((out / "c.mkv.latents").glob(".tvae*"))


def test_none_is_kept_that_would_take_longer_than_the_run(
    run: Run, model: Run, interrupted: Run, kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image VAE has no caches to keep."""
    monkeypatch.setattr(checkpoint, "_BYTES_A_SECOND", 1e-12)
    interrupted("encode", source, tmp_path / "out", 150)
    _, events = run("encode", source, output=tmp_path / "out", model=model())
    assert went_on(events) == (kind == "image")


def test_keeping_checkpoints_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    kept = checkpoint.Checkpoints(tmp_path / "state", "f")
    assert kept.due(0)
    gigabytes = 5 << 30
    assert not kept.due(gigabytes), "the first takes its share of the time, too"
    now += 399.0
    assert not kept.due(gigabytes)
    now += 2.0
    assert kept.due(gigabytes)

    save_file = checkpoint.save_file

    def slow(*arguments: Any) -> str:
        nonlocal now
        now += 2.0
        return save_file(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    caches = [torch.arange(6.0).view(2, 3).t(), torch.ones(2, dtype=torch.bfloat16)]

    class Stream:
        nbytes = gigabytes

        def saved(self) -> list[Tensor]:
            nonlocal now
            now += 1.0
            return caches

    stream: Any = Stream()
    assert kept.caches_of(stream) is caches
    now += 500.0
    assert kept.caches_of(stream) is None, "the first is still being written, beside the next part"
    kept.write(checkpoint.Checkpoint(1, 17, 5, caches))
    now += 59.0
    assert kept.caches_of(stream) is None
    assert not kept.due(gigabytes)
    assert not kept.due(0), "it is known how long it takes"
    now += 2.0
    assert kept.due(gigabytes)
    found = kept.read()
    assert found is not None
    assert (found.parts, found.frames, found.chunks, found.generator, len(found.caches)) == (1, 17, 5, None, 2)
    assert torch.equal(found.caches[0], torch.arange(6.0).view(2, 3).t())
    assert found.caches[1].dtype == torch.bfloat16
    assert checkpoint.Checkpoints(tmp_path / "state", "g").read() is None


@pytest.mark.long
def test_a_damaged_checkpoint_is_none(tmp_path: Path) -> None:
    """One flipped bit, wherever it is."""
    kept, rng = checkpoint.Checkpoints(tmp_path / "state", "f" * 64), random.Random(0)
    caches = [torch.randn(3, 5), torch.ones(3, dtype=torch.bfloat16)]
    kept.write(checkpoint.Checkpoint(2, 34, 9, caches, torch.Generator().get_state()))
    whole = kept.path.read_bytes()
    for bit in rng.sample(range(len(whole) * 8), 300) + list(range(64, 64 + 8 * 400, 3)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        kept.path.write_bytes(data)
        found = kept.read()
        if found is not None:  # a bit of the padding, or of a tensor's name
            assert (found.parts, found.frames, found.chunks) == (2, 34, 9), bit
            assert all(map(torch.equal, found.caches, caches))
    kept.path.write_bytes(whole)
    assert kept.read() is not None
