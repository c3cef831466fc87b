"""What a rank that has failed in a run still sends and receives, so that the others do not wait for it in vain.

The messages are those of the whole run but for the first ones, which have passed. Nothing is computed: buffers are on
PyTorch's ``meta`` device, which holds no numbers, and what goes out is NaN in every floating type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, shape_of_rows
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.exchange import Exchange, Message
from tvae.pipeline.engine.run.rank_rows import RankRows
from tvae.pipeline.engine.run.storage import Boundary, Done, Pending

__all__ = ["META", "EmptyExchange", "Skipped", "empty_run", "no_numbers"]

META = torch.device("meta")
_EVERY_BIT = 0xFF
"""Of a byte. Numbers of such bytes are NaN, whole ones -1."""


def no_numbers(like: Tensor, device: torch.device) -> Tensor:
    """NaN, or zeros of another type, in the shape of a tensor; in no memory of that size."""
    value = float("nan") if like.is_floating_point() else 0
    return torch.full((), value, dtype=like.dtype, device=device).expand(like.shape)


class Skipped:
    """Counts how many messages are still to be left out, of several exchanges together."""

    def __init__(self, count: int) -> None:
        self._left = count

    def one(self) -> bool:
        """Is the next to be left out?"""
        self._left -= 1
        return self._left >= 0


class EmptyExchange:
    """Takes and gives tensors of the ``meta`` device, and sends others in their place over ``exchange``, from
    ``device``. See ``Exchange``. skipped: messages that have passed."""

    recordable = False

    def __init__(self, exchange: Exchange, device: torch.device, skipped: Skipped) -> None:
        self.rank, self.ranks = exchange.rank, exchange.ranks
        self._exchange, self._device, self._skipped = exchange, device, skipped

    def swap(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """See ``Exchange``."""
        if not self._skipped.one():
            out, into = ([(peer, self._like(t)) for peer, t in messages] for messages in (sends, receives))
            self._exchange.swap(out, into)

    def gather(self, part: Tensor) -> list[Tensor]:
        """See ``Exchange``."""
        if not self._skipped.one():
            self._exchange.gather(self._like(part))
        return [part] * self.ranks

    def broadcast(self, value: Tensor) -> None:
        """See ``Exchange``."""
        if not self._skipped.one():
            self._exchange.broadcast(self._like(value))

    def _like(self, t: Tensor) -> Tensor:
        some = torch.full((t.numel() * t.element_size(),), _EVERY_BIT, dtype=torch.uint8, device=self._device)
        return some.view(t.dtype).view(t.shape)


class _Nowhere:
    """A buffer elsewhere, of no numbers. See ``Boundary``."""

    bytes = 0

    def __init__(self, shape: Sequence[int], axis: Axis, dtype: torch.dtype) -> None:
        self._shape, self._axis, self._dtype = shape, axis, dtype

    def fetch(self, lo: int, hi: int) -> Pending:
        """See ``Boundary``."""
        return Done(torch.empty(shape_of_rows(self._shape, self._axis, hi - lo), dtype=self._dtype, device=META))

    def keep(self, _lo: int, _hi: int, _rows: Tensor) -> Pending:
        """See ``Boundary``."""
        return Done(None)

    def close(self) -> None:
        """See ``Boundary``."""


def empty_run(
    schedule: Schedule, exchange: Exchange, left: Collection[int], *, channels_last: bool
) -> list[Tensor | None]:
    """The messages of ``execute``, and its outputs, on the ``meta`` device. left: the inputs of which there were own
    rows alone."""
    program = schedule.program
    ops, store, away = program.ops, dict[int, Tensor](), dict[int, Boundary]()

    def buffer(id_: int) -> Tensor:
        op, room = ops[id_], schedule.rooms.get(id_)
        shape = op.shape if room is None or op.axis is None else shape_of_rows(op.shape, op.axis, room[1] - room[0])
        return torch.empty(shape, dtype=op.dtype, device=META)

    for id_ in program.inputs:
        store[id_] = buffer(id_)
    noise = [op.id for op in ops if op.kind == "noise"]
    for id_ in noise:
        store[id_] = torch.empty(ops[id_].shape, dtype=ops[id_].dtype, device=META)
    together = RankRows(schedule, exchange, store, away, META, channels_last)
    together.begin(noise, left)
    for segment in schedule.segments:
        for id_ in segment.sinks:
            op = ops[id_]
            if id_ in schedule.places and op.axis is not None:
                away[id_] = _Nowhere(op.shape, op.axis, op.dtype)
            elif not op.reduction:
                store[id_] = buffer(id_)
        together.end_segment(segment.sinks, {})
        for id_ in segment.drops:
            store.pop(id_, None)
            away.pop(id_, None)
    return [together.result(i) if i in store else buffer(i) for i in program.outputs]
