"""Recordings of runs on CPUs: a run on memory of its own, since a CUDA graph needs GPUs and NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.session.kept_runs import KeptRuns
from tvae.pipeline.session.runner import Runner

__all__ = ["Recordings"]


class Recordings:
    """Puts a stand-in in the place of recordings, in this process. refused: none can be made. made, replayed: how many;
    rows: of the last one's input; brought: caches that a replay copied to where it reads them; at_hand: replays that
    have their inputs and have not begun; used: how often a recording was said to be wanted."""

    def __init__(self, *, refused: bool = False) -> None:
        self.made = self.replayed = self.rows = self.brought = self.at_hand = self.used = 0
        self.replaying = False
        self._refused, begin = refused, Runner.__init__
        GroupExchange.recordable = property(lambda _: True, lambda *_: None)  # type: ignore[assignment, method-assign]
        KeptRuns.record = self._record  # type: ignore[assignment, method-assign]
        KeptRuns.used = self._used  # type: ignore[method-assign]

        def recording(runner: Runner, *args: Any, **how: Any) -> None:
            begin(runner, *args, **{**how, "record": True})

        Runner.__init__ = recording  # type: ignore[method-assign]

    def _used(self, *_: Any) -> None:
        self.used += 1

    def _record(
        self,
        _owner: Any,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        _size: int,
        _carried: int,
        kept: Sequence[Tensor] = (),
    ) -> Any:
        if self._refused:
            raise RuntimeError("no room")
        self.made += 1
        self.rows = inputs[0].shape[-2]
        fixed = [*(torch.empty_like(x) for x in inputs), *kept]

        def bring(given: Sequence[Tensor]) -> None:
            self.at_hand += 1
            for ours, theirs in zip(fixed, given, strict=True):
                if theirs.data_ptr() != ours.data_ptr():
                    self.brought += ours is not fixed[0]
                    ours.copy_(theirs)

        def start() -> list[Tensor]:
            self.at_hand -= 1
            self.replayed += 1
            self.replaying = True
            found = run(fixed)
            self.replaying = False
            return found

        def replay(given: Sequence[Tensor]) -> list[Tensor]:
            bring(given)
            return start()

        return SimpleNamespace(replay=replay, bring=bring, start=start)
