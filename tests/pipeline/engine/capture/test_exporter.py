"""What the exporter is spared makes no difference to what it gives."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_vaes import TINY
from torch import Tensor, nn
from torch.utils._traceback import CapturedTraceback

from tvae.pipeline.engine.capture import capture as capturing
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.capture.exporter import exporting
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.sizes import Size, evaluate
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import remove_unused, simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.outputs import flatten


class Norms(nn.Module):
    """A norm with an affine map and one without, among operations that ask how values lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.plain = nn.GroupNorm(2, 8), nn.GroupNorm(4, 8, affine=False)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.plain(self.conv(F.silu(self.norm(x))))
        b, c, h, w = y.shape
        return (y.reshape(b, c, h * w).transpose(1, 2).reshape(b, h, w, c).permute(0, 3, 1, 2) + x).contiguous()


class Loop(nn.Module):
    """A clip frame by frame, what was kept of the frame before among the operands: the same operations on the same
    shapes again and again, and nearly the same. Factories, views, values written in place, several results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv3d(4, 4, (2, 3, 3), padding=(0, 1, 1)), nn.Parameter(torch.ones(4, 1, 1, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        kept, frames = None, []
        for n in range(x.shape[2]):
            y = x[:, :, n : n + 1]
            before = torch.zeros_like(y) if kept is None else kept
            kept = y.clone()
            joined = F.pad(torch.cat([before, y], dim=2), (1, 0, 0, 1, 0, 0), mode="replicate")[..., 1:, :-1]
            y = F.normalize(self.conv(joined), dim=1) * self.gain + torch.zeros(y.shape[-2:], dtype=y.dtype)
            y[:, 0] *= 2
            low, high = y.chunk(2, dim=1)
            rows = F.interpolate((low + high.mean(dim=(-2, -1), keepdim=True))[:, :, 0], scale_factor=2.0)
            most = rows.amax(dim=1, keepdim=True).expand(-1, 2, -1, -1).contiguous()
            frames.append(torch.stack([rows, most.to(torch.float32).to(rows.dtype)], dim=2))
        return [torch.cat(frames, dim=2), *([] if kept is None else [kept])]


def _same(ours: Graph, theirs: Graph, shapes: Sequence[tuple[int, ...]]) -> None:
    """Sizes may be said in other words: where pixels become channels, the exporter says ``4*(h//(h//2))*…`` for 16."""
    assert [(n.kind, n.target, n.module) for n in ours.nodes] == [(n.kind, n.target, n.module) for n in theirs.nodes]
    assert (ours.inputs, ours.outputs, ours.row_symbol) == (theirs.inputs, theirs.outputs, theirs.row_symbol)
    assert (ours.constants.keys(), ours.fixed) == (theirs.constants.keys(), theirs.fixed)
    for shape in shapes:
        assert ours.bind([shape]) == theirs.bind([shape])
        if ours.bind([shape]) is not None:
            assert _sizes_at(ours, shape) == _sizes_at(theirs, shape)
    assert ours.bind([shapes[0]]) is not None


def _sizes_at(graph: Graph, shape: tuple[int, ...]) -> list[Any]:
    """Of every node: what it is, and its numbers for an input of this shape."""
    sizes = graph.bind([shape])
    assert sizes is not None

    def number(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(number(v) for v in value)
        return evaluate(value, sizes) if isinstance(value, Size) else value

    return [
        (n.target, number(n.args), number(tuple(n.kwargs.items())), [(number(m.shape), m.dtype) for m in n.outputs])
        for n in graph.nodes
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_graph_is_the_exporters_own(
    dtype: torch.dtype, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Norms().to(dtype)
    x = torch.randn(1, 8, 12, 10).to(dtype).contiguous(memory_format=layout)
    run: Callable[[Tensor], list[Tensor]] = lambda x: [module(x)]  # noqa: E731
    ours = capture(module, run, [x])
    monkeypatch.setattr(capturing, "exporting", lambda **_: nullcontext())
    theirs = capture(module, run, [x])
    _same(ours, theirs, [(1, 8, 12, 10), (1, 8, 40, 24), (1, 8, 7, 33)])


@pytest.mark.long
def test_a_loop_over_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Loop(), torch.randn(1, 4, 5, 12, 10)
    ours = capture(module, module.forward, [x])
    monkeypatch.setattr(capturing, "exporting", lambda **_: nullcontext())
    theirs = capture(module, module.forward, [x])
    _same(ours, theirs, [(1, 4, 5, 12, 10), (1, 4, 5, 40, 24), (1, 4, 5, 7, 33), (1, 4, 5, 1, 9)])


def test_sizes_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.less = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, stride=2)

        def forward(self, x: Tensor) -> list[Tensor]:
            return [*self.sized(F.interpolate(self.conv(x), scale_factor=2.0), x), *self.sized(self.less(x), x)]

        def sized(self, y: Tensor, x: Tensor) -> list[Tensor]:
            rows = y.reshape(y.shape[0], y.numel() // y.shape[-1] // y.shape[0], y.shape[-1])
            steps = y.new_zeros(y.stride(2), y.stride(1) - y.shape[3])
            return [rows, steps + 1, torch.arange(y.shape[2] // 2 + x.shape[3], dtype=y.dtype)]

    module, x = Sized(), torch.randn(1, 3, 32, 24)
    ours = capture(module, module.forward, [x])
    monkeypatch.setattr(capturing, "exporting", lambda **_: nullcontext())
    theirs = capture(module, module.forward, [x])
    for shape in ((1, 3, 32, 24), (1, 3, 50, 61), (1, 3, 9, 9)):  # strides of the exporter's are "at least 1"
        assert _sizes_at(ours, shape) == _sizes_at(theirs, shape)


def test_lines_of_source_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    module, summary, askers = Norms(), CapturedTraceback.summary, list[str]()

    def looked_up(self: Any) -> Any:
        askers.append(Path(sys._getframe(1).f_code.co_filename).name)
        return summary(self)

    monkeypatch.setattr(CapturedTraceback, "summary", looked_up)
    run: Callable[[Tensor], list[Tensor]] = lambda x: [module(x)]  # noqa: E731
    capture(module, run, [torch.randn(1, 8, 12, 10)])
    assert "proxy.py" not in askers  # where nodes are made
    monkeypatch.setattr(capturing, "exporting", lambda **_: nullcontext())
    capture(module, run, [torch.randn(1, 8, 12, 10)])
    assert "proxy.py" in askers


QUICK = {("AutoencoderKL", "decode")}
"""The others are tried in the slow run."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "side"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in itertools.product(TINY, ("encode", "decode"))
    ],
)
def test_every_family(family: str, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = TINY[family]
    module, x = tiny.build(), tiny.input(side, 8, 12)

    def run(x: Tensor) -> list[Tensor]:
        return flatten(call_reference(module, side, x, **tiny.extra(side)))[0]

    with torch.no_grad(), reference_mode(module):
        ours = capture(module, run, [x])
        monkeypatch.setattr(capturing, "exporting", lambda **_: nullcontext())
        theirs = capture(module, run, [x])
        # what is reached: where channels are said in other words, ``x[:]`` of them is an operation of its own
        y, reached = tiny.input(side, 24, 16), [remove_unused(simplify(graph)) for graph in (ours, theirs)]
        _same(*reached, [tuple(x.shape), tuple(y.shape)])
        assert all(map(torch.equal, _computed(ours, module, x), _computed(theirs, module, x)))


def _computed(graph: Graph, module: nn.Module, x: Tensor) -> list[Tensor]:
    """In strips."""
    graph = simplify(graph)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    program = lower(graph, sizes, x.device)
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}  # also those that are not saved
    return execute(schedule(program, 5), [x], {**weights, **graph.constants})


def test_sizes_that_depend_on_values_are_found_each_time() -> None:
    class Picked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> list[Tensor]:
            low, high = x[x > 0], (-x)[-x > 0]
            return [torch.cat([low * self.weight, high * self.weight])]

    from torch.export import Dim

    with exporting(), torch.no_grad():
        program = torch.export.export(
            Picked(), (torch.randn(1, 3, 8, 8),), dynamic_shapes=({2: Dim.AUTO, 3: Dim.AUTO},), strict=False
        )
    (size,) = program.graph.find_nodes(op="output")[0].args[0][0].meta["val"].shape
    assert len(size.node.expr.free_symbols) == 2  # how many were picked, twice
