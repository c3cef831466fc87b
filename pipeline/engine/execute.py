"""Execute: Schedule + tensors -> tensors, segment by segment, strip by strip. The plain path, on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.axis import crop, place
from tvae.pipeline.engine.bounds import Rows, demanded, owned
from tvae.pipeline.engine.program import Op
from tvae.pipeline.engine.schedule import Schedule, Segment

__all__ = ["execute", "memory_format"]


@torch.no_grad()
def execute(
    schedule: Schedule,
    inputs: Sequence[Tensor],
    weights: Mapping[str, Tensor],
    generator: torch.Generator | None = None,
    *,
    channels_last: bool = False,
) -> list[Tensor]:
    """Run a schedule.

    inputs: the graph's inputs, on the device and in the type it was captured for. weights: parameters, buffers and
    constants by name. generator: source of the noise a model injects; drawn whole and first, in the model's order.
    channels_last: memory layout of inputs and buffers (weights are as given).
    """
    program = schedule.program
    device = inputs[0].device
    store: dict[int, Tensor] = {i: weights[name] for i, name in program.params.items()}
    formatted = [x.contiguous(memory_format=memory_format(x.ndim, channels_last)) for x in inputs]
    store.update(zip(program.inputs, formatted, strict=True))
    for op in program.ops:
        if op.kind == "noise":
            store[op.id] = _noise(op, generator, device)
    for segment in schedule.segments:
        _Run(schedule, segment, store, device, channels_last).run()
        for id_ in segment.drops:
            store.pop(id_, None)
    return [store[i] for i in program.outputs]


def memory_format(ndim: int, channels_last: bool) -> torch.memory_format:
    """The layout of images or clips with channels innermost, the plain one for everything else."""
    if not channels_last or ndim not in (4, 5):
        return torch.contiguous_format
    return torch.channels_last if ndim == 4 else torch.channels_last_3d


def _noise(op: Op, generator: torch.Generator | None, device: torch.device) -> Tensor:
    draw = torch.randn if op.name.startswith("randn") else torch.rand
    source = generator.device if generator is not None else device
    return draw(op.shape, generator=generator, dtype=op.dtype, device=source).to(device)


class _Run:
    """One segment over all its strips."""

    def __init__(
        self, schedule: Schedule, segment: Segment, store: dict[int, Tensor], device: torch.device, channels_last: bool
    ) -> None:
        self.channels_last = channels_last
        self.ops, self.total = schedule.program.ops, schedule.program.rows
        self.segment, self.store, self.device = segment, store, device
        self.sinks = set(segment.sinks)
        self.last_use = {i: b for b in segment.body for i in self.ops[b].inputs}

    def run(self) -> None:
        ops, store = self.ops, self.store
        for id_ in self.segment.whole:
            store[id_] = ops[id_].run(self._stored, 0, 0)
        buffers = [i for i in self.segment.sinks if not ops[i].reduction]
        for id_ in buffers:
            shape = ops[id_].shape
            layout = memory_format(len(shape), self.channels_last)
            store[id_] = torch.empty(shape, dtype=ops[id_].dtype, device=self.device, memory_format=layout)
        folded: dict[int, Any] = {}
        for strip in self.segment.strips:
            self._strip(strip, folded)
        for id_, acc in folded.items():
            reduction = ops[id_].reduction
            assert reduction is not None
            store[id_] = reduction.finish(acc)

    def _stored(self, id_: int, lo: int | None = None, hi: int | None = None) -> Tensor:
        value = self.store[id_]
        axis = self.ops[id_].axis
        return value if lo is None or hi is None or axis is None else crop(value, axis, lo, hi)

    def _strip(self, strip: Rows, folded: dict[int, Any]) -> None:
        ops, segment = self.ops, self.segment
        wanted = demanded(ops, segment.body, segment.sinks, segment.reads, strip, self.total)
        values: dict[int, Tensor] = {}

        def read(id_: int, lo: int | None = None, hi: int | None = None) -> Tensor:
            if id_ not in values:
                return self._stored(id_, lo, hi)
            axis = ops[id_].axis
            if lo is None or hi is None or axis is None:
                return values[id_]
            first = wanted[id_][0]
            return crop(values[id_], axis, lo - first, hi - first)

        for id_ in segment.body:
            if id_ not in wanted:
                continue
            op, (lo, hi) = ops[id_], wanted[id_]
            if op.reduction:
                folded[id_] = op.reduction.fold(folded.get(id_), read, lo, hi)
            else:
                values[id_] = op.run(read, lo, hi)
                if id_ in self.sinks:
                    self._keep(op, values[id_], lo, strip)
            for i in op.inputs:
                if self.last_use[i] == id_:
                    values.pop(i, None)

    def _keep(self, op: Op, value: Tensor, first: int, strip: Rows) -> None:
        """Write the owned rows of a sink into its buffer; halo rows belong to the neighbours."""
        assert op.axis is not None
        lo, hi = owned(op.axis.rows, strip, self.total)
        place(self.store[op.id], op.axis, lo, hi, crop(value, op.axis, lo - first, hi - first))
