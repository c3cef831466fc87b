"""Segments of one strip: the rows that their operations read, and memory that runs out in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from one_op import CPU, OneOp, image
from resnet import convolved
from told_kernels import telling
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.one_strip import OneStrip


class Fails(TorchDispatchMode):
    """Memory runs out in the n-th convolution, counted from 0. after: the rows that those behind it read."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self._left, self.after = fails, list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self._left -= 1
            if self._left == -1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            if self._left < -1:
                self.after.append(args[0].shape[2])
        return func(*args, **(kwargs or {}))


def lowered(g: OneOp, kernels: Kernels | None = None) -> Program:
    return lower(g.graph, g.sizes, CPU, kernels)


def two_convolutions(height: int) -> OneOp:
    g = OneOp(height, 5)
    x = image(g, 4, 1)
    return g.gives(convolved(g, convolved(g, x)))


def test_rows_are_counted_from_the_first_that_is_computed() -> None:
    """Of a convolution that nothing wants the first rows of."""
    g = OneOp(12, 5)
    made = convolved(g, image(g, 4, 1))
    parts = [g.call("slice.Tensor", made, 2, first, first + 6, shape=(1, 4, 6, "w")) for first in (3, 5)]
    sum_ = g.call("add.Tensor", *parts, shape=(1, 4, 6, "w"))
    program = lowered(g.gives(sum_))
    plan = schedule(program, 12)
    assert all(OneStrip.fits(plan, segment) for segment in plan.segments)
    first = next(op for op in program.ops if op.name == "conv2d")
    (found,) = execute(plan, g.inputs(), g.weights)
    assert found is not None
    strips = [one for key, one in plan.facts.items() if isinstance(one, OneStrip)]
    assert any(one._present.get(first.id, (0, 0))[0] == 3 for one in strips)
    torch.testing.assert_close(found, g.value(sum_))


def test_inputs_are_laid_out_as_buffers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    g = OneOp(8, 5)
    g.gives(g.call("group_norm.default", image(g), 2), channels_last=True)
    innermost: list[bool] = []

    def note(operation: str, x: Tensor, *_: Any) -> None:
        if operation in ("group_stats", "norm_act"):
            innermost.append(x.stride(1) == 1)

    monkeypatch.setattr(Kernels, "_chain", telling(note))
    planes = [x.contiguous() for x in g.inputs()]
    execute(schedule(lowered(g, Kernels()), 8), planes, g.weights, channels_last=True)
    assert innermost == [True, True]


@pytest.mark.parametrize("fails", [0, 1])
def test_memory_that_runs_out_halves_the_strip(fails: int) -> None:
    g = two_convolutions(8)
    plan = schedule(lowered(g), 8)
    (want,) = execute(plan, g.inputs(), g.weights)
    with Fails(fails) as mode:
        (found,) = execute(plan, g.inputs(), g.weights)
    assert found is not None
    assert max(mode.after) == 6  # four rows, and two that the convolutions see below or above them
    torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-11)


def test_one_row_cannot_be_halved() -> None:
    g = two_convolutions(1)
    with Fails(1), pytest.raises(torch.OutOfMemoryError):
        execute(schedule(lowered(g), 1), g.inputs(), g.weights)


def test_what_was_handed_over_and_is_gone_cannot_be_computed_again() -> None:
    """The second convolution has nothing to begin with."""
    g = two_convolutions(8)
    program = lowered(g)
    plan = schedule(replace(program, handed_over=frozenset(program.inputs)), 8)
    with Fails(1), pytest.raises(torch.OutOfMemoryError):
        execute(plan, g.inputs(), g.weights)
