"""A prepared run: what executes, what was planned for it, and what its tensors make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.session.choose_plan import ChosenPlan
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.settings.threads import kept_busy

__all__ = ["Ready", "serves_still"]


@dataclass(frozen=True)
class Ready:
    """A run that is prepared, for inputs of one shape. spec: rebuilds the return value from its tensors."""

    runner: Runner
    planned: ChosenPlan
    spec: Spec

    def serves(self, limits: Limits, device: torch.device) -> bool:
        """Is it still of use? Weights that it reads may have been freed. What is recorded has its memory; other runs
        take theirs anew."""
        return self.runner.weights_in_place() and (self.runner.recorded or self.planned.fits(limits, device))

    def threads(self, most: int) -> int:
        """How many threads of the CPU, of at most so many, the run keeps busy."""
        return kept_busy(self._work, most)

    @cached_property
    def _work(self) -> list[float]:
        return [op.work for op in self.planned.schedule.program.ops]


def serves_still(ready: Ready, *, limits: Limits, device: torch.device, shared: bool) -> bool:
    """Is there still room for a run? Ranks that share it all keep what they found together."""
    return shared or ready.serves(limits, device)
