"""The plan of a clip that goes through a model in steps: the plans of its kinds of step, and what lies between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvae.pipeline.engine.plan.machine import Bound
from tvae.pipeline.engine.plan.report import Plan, size_text

__all__ = ["RECORDED_HOLES", "ClipPlan", "StepPlan"]

RECORDED_HOLES = 1.10
"""Times what its largest step takes, that a clip is planned with which may become one CUDA graph: between the caches of
a step there is not always room for the next one's maps, and no memory is given back meanwhile. The most that was
measured is 1.17, and a recording may exceed its plan a little (``kept_runs.RECORDED_MOST``)."""


@dataclass(frozen=True)
class StepPlan:
    """``count`` steps of ``frames`` frames each (latent frames where the clip is decoded), planned alike."""

    frames: int
    count: int
    plan: Plan


@dataclass(frozen=True)
class ClipPlan:
    """What will run, before it runs. ``str(plan)`` is a table. The first of ``steps`` is the clip's first step."""

    side: str
    input_shape: tuple[int, ...]
    steps: tuple[StepPlan, ...]
    caches: int
    cache_bytes: int
    """Of all caches that one step hands to the next."""
    caches_at: str = "device"
    """device: as input and output of a step they are part of its peak. host, disk: their rows come and go."""
    whole_bytes: int = 0
    """Of the clip and its result, where both are on the device as a whole."""
    recorded: bool = False
    """It is recorded as a CUDA graph when it has come often."""

    @property
    def peak_bytes(self) -> int:
        """Predicted peak, without weights and library workspaces: that of any step, beside the whole clip where it is
        on the device. Of a clip that comes and goes, a longer one does not raise it."""
        step = max(s.plan.peak_bytes for s in self.steps)
        return self.whole_bytes + (int(step * RECORDED_HOLES) if self.recorded else step)

    @property
    def weight_bytes(self) -> int:
        """Of the weights."""
        return self.steps[0].plan.weight_bytes

    @property
    def seconds(self) -> float:
        """An estimate for the whole clip, good for comparing plans."""
        return sum(s.count * s.plan.seconds for s in self.steps)

    @property
    def bound(self) -> Bound:
        """What takes most of it."""
        return max(self.steps, key=lambda s: s.count * s.plan.seconds).plan.bound

    @property
    def host_bytes(self) -> int:
        """Predicted peak on the host."""
        return max(s.plan.host_bytes for s in self.steps) + (self.cache_bytes if self.caches_at == "host" else 0)

    @property
    def disk_bytes(self) -> int:
        """Predicted peak on disk."""
        return max(s.plan.disk_bytes for s in self.steps) + (self.cache_bytes if self.caches_at == "disk" else 0)

    @property
    def least_budget(self) -> int:
        """The smallest budget that works."""
        return max(s.plan.least_budget for s in self.steps)

    @property
    def whole(self) -> tuple[str, ...]:
        """What makes some of it run on whole values."""
        return tuple(dict.fromkeys(one for s in self.steps for one in s.plan.whole))

    @property
    def work(self) -> float:
        """Floating-point operations of the whole clip, counted as a ``Plan`` counts them."""
        return sum(s.count * s.plan.work for s in self.steps)

    @property
    def first_work(self) -> float:
        """Those before the first result is out: the first step's."""
        return self.steps[0].plan.work

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        first = self.steps[0].plan
        return {
            "side": self.side,
            "input_shape": self.input_shape,
            "dtype": first.dtype,
            "steps": [{"frames": s.frames, "count": s.count, **s.plan.to_json()} for s in self.steps],
            "caches": self.caches,
            "cache_bytes": self.cache_bytes,
            "caches_at": self.caches_at,
            "weight_bytes": self.weight_bytes,
            "peak_bytes": self.peak_bytes,
            "least_bytes": max(s.plan.least_bytes for s in self.steps),
            "work": self.work,
            "first_work": self.first_work,
        }

    def __str__(self) -> str:
        first, *later = self.steps
        what = "latent frame" if self.side == "decode" else "frame"
        shape = "x".join(map(str, self.input_shape))
        total = sum(s.count for s in self.steps)
        cut = [_counted(first.frames, what), *(f"{_counted(s.frames, what)} {s.count} times" for s in later)]
        lines = [f"{self.side} {shape} in {_counted(total, 'step')}: {', then '.join(cut)}"]
        for name, s in (("first step", first), *(("every later step", s) for s in later)):
            lines += [f"{name}, {_counted(s.frames, what)}:", *(f"  {line}" for line in str(s.plan).splitlines())]
        peak, kept = size_text(self.peak_bytes), size_text(self.cache_bytes)
        where = {"device": "among them", "host": "on the host beside them", "disk": "on disk beside them"}[
            self.caches_at
        ]
        lines.append(f"predicted peak of activations in any step {peak}, {self.caches} caches of {kept} {where}")
        lines.append(f"work {_work(self.work)}, {_work(self.first_work)} of it before the first result")
        return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _work(operations: float) -> str:
    return f"{operations / 1e12:.3g} TFLOP" if operations >= 1e11 else f"{operations / 1e9:.3g} GFLOP"
