"""Short clips that come often are recorded whole. Without a GPU a plain run of their steps stands for a recording."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.session import kept_runs
from tvae.pipeline.session import session as session_module
from tvae.pipeline.session.clip_steps import ClipSteps
from tvae.pipeline.session.kept_runs import KeptRuns
from tvae.pipeline.session.recorded_clip import MOST_STEPS, RecordedClip
from tvae.pipeline.session.runner import MOST_CARRIED, RECORDED_STEP, Runner

WAN = TINY["AutoencoderKLWan"]


class Recording:
    """Runs again what a GPU would replay, into memory of its own."""

    def __init__(self, run: Callable[[Sequence[Tensor]], list[Tensor]], inputs: Sequence[Tensor]) -> None:
        self.run, self.inputs = run, [torch.empty_like(x) for x in inputs]
        run(self.inputs)
        self.replays = 0

    def replay(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for ours, given in zip(self.inputs, inputs, strict=True):
            ours.copy_(given)
        self.replays += 1
        return [t.clone() for t in self.run(self.inputs)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model is captured once for all tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[list[Recording]]:
    """Those of clips, as they are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    made: list[Recording] = []

    def record(self: KeptRuns, owner: Any, run: Any, inputs: Any, size: int, carried: int) -> Recording:
        assert 0 < carried < size
        made.append(Recording(run, inputs))
        self._recorded[owner] = kept_runs._Taken(size - carried, carried, next(kept_runs._clock))
        return made[-1]

    init = session_module.Session.__init__

    def started(self: Any, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        if self.limits.vram is None and self._peers is None:
            settings = session_module.nullcontext
            self._clips = session_module.ClipRecorder(self._runs, self._weights, settings)

    monkeypatch.setattr(KeptRuns, "record", record)
    monkeypatch.setattr(session_module.Session, "__init__", started)
    yield made
    kept_runs.drop_recordings(torch.device("cpu"))


def clip_of(frames: int, height: int = 4) -> Tensor:
    x = WAN.input("decode", height, 5)
    return torch.randn(*x.shape[:2], frames, *x.shape[3:], generator=torch.Generator().manual_seed(frames))


def agrees(tiled: Any, model: Any, z: Tensor) -> None:
    with torch.no_grad():
        want = result(model.decode(z))
    assert relative_l2(result(tiled.decode(z)), want) <= 1e-5


@pytest.mark.long
def test_a_clip_that_comes_often_is_recorded_and_replayed(recordings: list[Recording]) -> None:
    model = WAN.build()
    tiled = TiledVAE(model, "cpu")
    for n in range(RECORDED_STEP + 2):
        agrees(tiled, model, clip_of(5) + n)
        assert len(recordings) == (n + 1 >= RECORDED_STEP)
    assert recordings[0].replays == 3


@pytest.mark.slow
def test_each_length_and_size_has_its_own(recordings: list[Recording]) -> None:
    model = WAN.build()
    tiled = TiledVAE(model, "cpu")
    for _ in range(RECORDED_STEP + 1):
        for z in (clip_of(3), clip_of(1), clip_of(4, 6)):
            agrees(tiled, model, z)
    assert [r.replays for r in recordings] == [2, 2, 2]


@pytest.mark.slow
def test_both_sides_are_recorded(recordings: list[Recording]) -> None:
    model = WAN.build()
    tiled, x = TiledVAE(model, "cpu"), torch.rand(1, 3, 9, 32, 24)
    with torch.no_grad():
        want = model.encode(x).latent_dist.mode()
    for _ in range(RECORDED_STEP + 1):
        assert relative_l2(tiled.encode(x).latent_dist.mode(), want) <= 1e-5
    assert [r.replays for r in recordings] == [2]


@pytest.mark.slow
def test_a_long_clip_is_not(recordings: list[Recording]) -> None:
    tiled = TiledVAE(WAN.build(), "cpu")
    for frames, recorded in ((MOST_STEPS + 1, 0), (MOST_STEPS, 1)):
        for _ in range(RECORDED_STEP):
            tiled.decode(clip_of(frames))
        assert len(recordings) == recorded


@pytest.mark.long
@pytest.mark.parametrize("how", slow_but(["in place"], ["data", "in place", "exchanged"]))
def test_changed_weights_are_never_replayed(how: str, recordings: list[Recording]) -> None:
    model, z = WAN.build(), clip_of(3)
    tiled = TiledVAE(model, "cpu")
    for _ in range(RECORDED_STEP):
        agrees(tiled, model, z)
    weight = model.decoder.conv_in.weight
    with torch.no_grad():
        if how == "data":
            weight.data.mul_(1.5)
        elif how == "in place":
            weight.mul_(1.5)
        else:
            model.decoder.conv_in.weight = torch.nn.Parameter(weight * 1.5)
    for _ in range(RECORDED_STEP + 1):
        agrees(tiled, model, z)
    assert len(recordings) == 2


@pytest.mark.slow
def test_it_goes_when_memory_is_wanted_and_comes_again(recordings: list[Recording]) -> None:
    model, z = WAN.build(), clip_of(3)
    tiled = TiledVAE(model, "cpu")
    for _ in range(RECORDED_STEP):
        agrees(tiled, model, z)
    assert kept_runs.drop_recordings(torch.device("cpu"))
    agrees(tiled, model, z)
    assert (len(recordings), recordings[0].replays) == (1, 1)
    for _ in range(RECORDED_STEP):
        agrees(tiled, model, z)
    assert len(recordings) == 2


@pytest.mark.long
def test_one_that_cannot_be_made_is_not_tried_again(
    recordings: list[Recording], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def refusing(*args: Any) -> None:
        asked.append(1)
        raise RuntimeError("no room\nat all")

    monkeypatch.setattr(KeptRuns, "record", refusing)
    model, z = WAN.build(), clip_of(3)
    tiled = TiledVAE(model, "cpu")
    with caplog.at_level("INFO", "tvae"):
        for _ in range(RECORDED_STEP + 2):
            agrees(tiled, model, z)
    assert asked == [1]
    assert "a clip is not recorded as a CUDA graph: no room" in caplog.messages


@pytest.mark.slow
def test_what_would_be_copied_too_long_is_not(recordings: list[Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvae.pipeline.session.recorded_clip.MOST_CARRIED", 1000)
    assert MOST_CARRIED > 1000
    asked = list[int]()
    real = ClipSteps.run_keys
    monkeypatch.setattr(ClipSteps, "run_keys", lambda *args: asked.append(1) or real(*args))
    tiled = TiledVAE(WAN.build(), "cpu")
    for _ in range(RECORDED_STEP + 2):
        tiled.decode(clip_of(3))
    assert not recordings
    assert asked == [1], "what cannot be costs the later calls nothing"


@pytest.mark.long
def test_while_kernels_are_built_none_is_made(recordings: list[Recording], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvae.pipeline.session.runner.under_way", lambda: True)
    tiled = TiledVAE(WAN.build(), "cpu")
    for _ in range(RECORDED_STEP + 1):
        tiled.decode(clip_of(3))
    assert not recordings
    monkeypatch.setattr("tvae.pipeline.session.runner.under_way", lambda: False)
    tiled.decode(clip_of(3))
    assert len(recordings) == 1


@pytest.mark.long
def test_memory_that_is_no_longer_the_weights_is_not_read(
    recordings: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, z = WAN.build(), clip_of(3)
    tiled = TiledVAE(model, "cpu")
    for _ in range(RECORDED_STEP):
        agrees(tiled, model, z)
    monkeypatch.setattr(Runner, "weights_in_place", lambda self: False)
    agrees(tiled, model, z)
    assert recordings[0].replays == 1


@pytest.mark.long
def test_only_without_a_budget(recordings: list[Recording]) -> None:
    tiled = TiledVAE(WAN.build(), "cpu", vram="8GiB")  # a test's process has gigabytes of its own
    for _ in range(RECORDED_STEP + 1):
        tiled.decode(clip_of(3))
    assert not recordings


def test_caches_go_when_a_step_has_them() -> None:
    """Or a recording would hold those of two steps."""

    class Step:
        repeats, warm, planned_bytes = True, True, 1000

        def started(self, inputs: list[Tensor]) -> list[Tensor]:
            return [inputs.pop(0), *(cache + 1 for cache in inputs)]

    class Recorder:
        def record(self, owner: Any, run: Any, inputs: Any, size: int, carried: int) -> Recording:
            return Recording(run, inputs)

    caches = [torch.zeros(3)]

    def whole(step: Any, x: Tensor) -> Tensor:
        given = list(caches)
        part, *made = step(x, given, False)
        assert given == []
        assert torch.equal(made[0], torch.ones(3))
        return part * 2

    clip = RecordedClip()
    runners: list[Any] = [Step()]
    clip.record(runners, whole, torch.ones(2), 16, Recorder())  # type: ignore[arg-type]
    assert torch.equal(clip.replay(torch.full((2,), 3.0), mock.Mock()), torch.full((2,), 6.0))


BOTH = ("AutoencoderKLWan", "AutoencoderKLQwenImage", "AutoencoderKLCogVideoX", "AutoencoderKLMagvit", "SeedVR2VAE")
STEPPING = [(family, side) for family in BOTH for side in ("decode", "encode")] + [("AutoencoderKLMochi", "decode")]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "side"), STEPPING)
def test_every_family_at_random_lengths_sizes_and_orders(
    family: str, side: str, recordings: list[Recording], request: pytest.FixtureRequest
) -> None:
    """The same bits as step by step."""
    tiny, rng = TINY[family], random.Random(request.node.name)
    lengths = range(1, 6) if side == "decode" else (1, 5, 9, 13)
    shapes = rng.sample([(frames, height) for frames in lengths for height in range(3, 8)], 3)
    calls = [shape for shape in shapes for _ in range(RECORDED_STEP + 1)]
    rng.shuffle(calls)
    tiled, first = TiledVAE(tiny.build(), "cpu"), dict[tuple[int, ...], Tensor]()
    for frames, height in calls:
        x = tiny.input(side, height, 5)[:, :, :1]
        x = torch.cat([x * (1 + 0.1 * n) for n in range(frames)], 2)
        found = result(getattr(tiled, side)(x))
        assert torch.equal(first.setdefault(tuple(x.shape), found), found)
    assert [one.replays for one in recordings] == [2] * len(shapes)
