"""Which way strips divide a clip: its height where that fits, its time where that fits or is quicker."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline.engine.run.storage import Done
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.limits import Limits, Rows
from tvae.pipeline.models.calls import Call, Frames
from tvae.pipeline.session import choose_plan as planning
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.weights import PreparedWeights


class Clips(nn.Module):
    """Two causal convolutions over time, and a norm of every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(4, 16, 3, padding=(0, 1, 1)), nn.Conv3d(16, 3, 3, padding=(0, 1, 1))

    def decode(self, z: Tensor) -> Tensor:
        for conv in (self.first, self.last):
            padded = torch.cat([z[:, :, :1].repeat(1, 1, 2, 1, 1), z], 2)
            z = torch.tanh(conv(padded))
        return z


@pytest.fixture
def module() -> Clips:
    torch.manual_seed(0)
    return Clips().eval()


@pytest.fixture
def compiled(module: Clips) -> Compiled:
    return Compiled("decode", lambda: module, None, frames=Frames())


def weights(module: Clips) -> PreparedWeights:
    return PreparedWeights(lambda _names: dict(module.named_parameters()), torch.float32, channels_last=False)


def limit(monkeypatch: pytest.MonkeyPatch, budget: int | None) -> None:
    monkeypatch.setattr(planning, "activation_budget", lambda *_: budget)


LOW = (1, 4, 48, 2, 40)
"""Many frames of two rows: nothing is left of them where strips divide the height."""


@pytest.mark.parametrize("rows", ["height", "time"])
def test_what_is_asked_for(rows: Rows, compiled: Compiled, module: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, None)
    x = torch.randn(1, 4, 6, 5, 7)
    ready = compiled.ready([x], weights(module), Limits(2, True, rows=rows), Call())
    (value,) = ready.runner.run([x])
    with torch.no_grad():
        torch.testing.assert_close(value, module.decode(x), rtol=1e-5, atol=1e-6)
    plan = compiled.plan([x], Limits(2, True, rows=rows), Call())
    assert plan.strips == {"height": 3, "time": 3}[rows]
    assert ready.planned.schedule.program.rows == {"height": 5, "time": 6}[rows]


def test_height_where_it_fits_and_else_time(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.empty(LOW)
    limit(monkeypatch, None)
    at_ease = compiled.plan([x], Limits(1), Call())
    assert at_ease.strips == 2
    in_time = compiled.plan([x], Limits(1, rows="time"), Call())
    assert in_time.strips == 48
    assert in_time.peak_bytes < 0.8 * at_ease.peak_bytes
    limit(monkeypatch, (in_time.peak_bytes + at_ease.least_bytes) // 2)
    assert compiled.plan([x], Limits(1), Call()).strips == 48
    limit(monkeypatch, in_time.least_bytes // 2)
    with pytest.raises(PlanError) as refused:
        compiled.plan([x], Limits(1), Call())
    assert refused.value.enough is not None


def test_time_where_nothing_needs_the_whole_clip(module: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the height is not even captured, unless time does not fit or somebody named its rows."""
    limit(monkeypatch, None)
    alone = Compiled("decode", lambda: module, None, frames=Frames(alone=True))
    x = torch.randn(1, 4, 12, 5, 7)
    ready = alone.ready([x], weights(module), Limits(2), Call())
    assert ready.planned.schedule.program.rows == 12
    assert len(alone.captures._graphs) == 1
    with torch.no_grad():
        torch.testing.assert_close(ready.runner.run([x])[0], module.decode(x), rtol=1e-5, atol=1e-6)
    assert alone.ready([x], weights(module), Limits(2, fixed=True), Call()).planned.schedule.program.rows == 5


def test_rows_that_somebody_names_are_rows_of_the_height(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1)
    with pytest.raises(PlanError):
        compiled.plan([torch.empty(LOW)], Limits(1, fixed=True), Call())
    assert not any('"time"' in facts for facts in compiled.captures._graphs), "time is not even looked at"


def test_a_single_frame_has_no_time_to_divide(
    compiled: Compiled, module: Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, None)
    x = torch.randn(1, 4, 1, 5, 7)
    ready = compiled.ready([x], weights(module), Limits(2, rows="time"), Call())
    assert ready.planned.schedule.program.rows == 5
    with torch.no_grad():
        torch.testing.assert_close(ready.runner.run([x])[0], module.decode(x), rtol=1e-5, atol=1e-6)


class Source:
    """A clip by frames."""

    def __init__(self, clip: Tensor) -> None:
        self._clip, self.shape, self.dtype, self.device = clip, tuple(clip.shape), clip.dtype, clip.device

    def fetch(self, lo: int, hi: int) -> Done:
        return Done(self._clip[:, :, lo:hi])


class Sink:
    """Frames that were handed out."""

    def __init__(self) -> None:
        self.frames: list[Tensor] = []

    def keep(self, lo: int, hi: int, rows: Tensor) -> Done:
        assert lo == sum(part.shape[2] for part in self.frames)
        self.frames.append(rows.clone())
        return Done()


@pytest.mark.parametrize("frames", [1, 2, 9])
def test_frames_that_come_and_go(
    frames: int, compiled: Compiled, module: Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, None)
    clip, sink = torch.randn(1, 4, frames, 5, 7), Sink()
    source = Source(clip)
    ready = compiled.ready([source], weights(module), Limits(1, True), Call(), sinks={0: 2})
    assert ready.runner.run([source], sinks={0: sink}) == []
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(sink.frames, 2), module.decode(clip), rtol=1e-5, atol=1e-6)
    assert len(ready.planned.schedule.places) == (0 if frames == 1 else 2)


def test_strips_of_time_are_as_long_as_little_memory_allows(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long clip's strips are shorter than a short one's, and take no more memory."""
    limit(monkeypatch, None)
    little = 8_000_000

    def planned(frames: int, preferred: int, vram: int | None = None, *, fixed: bool = False) -> tuple[int, int]:
        limits = Limits(preferred, fixed, vram=vram, rows="time")
        found = compiled.plan([torch.empty((1, 4, frames, 40, 40), device="meta")], limits, Call())
        return found.strips, found.peak_bytes

    monkeypatch.setattr(planning, "_CLIP_BYTES", little)
    (short, its), (long, much) = planned(6, 256), planned(96, 256)
    assert short == 1
    assert 96 / long > 2
    assert its <= little
    assert much <= little
    assert planned(96, 3)[0] == 32, "not longer than is preferred"
    assert planned(96, 2, fixed=True)[0] == 48
    assert planned(96, 256, vram=1 << 40)[0] == 48, "of an amount that is named, plans take what is quick"
    monkeypatch.setattr(planning, "_CLIP_BYTES", 0)
    assert planned(94, 256)[0] == 47
