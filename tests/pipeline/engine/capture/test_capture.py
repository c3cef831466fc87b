"""Modules into graphs: names, guards, sizes that a graph does not serve, and what cannot be captured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import DEVICE, Graph, Ref
from tvae.pipeline.engine.ir.sizes import Size, evaluate
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.session import new_graph


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("shift", torch.ones(1, 4, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.shift * torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1, 1)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Inner()])
        self.model = nn.Conv2d(4, 4, 1)  # a name that the exporter's wrapper uses too

    def forward(self, x: Tensor) -> Tensor:
        return self.model(F.silu(self.blocks[0](x)))


def graph_of(module: nn.Module, *inputs: Tensor) -> Graph:
    return capture(module, lambda *xs: [module(*xs)], inputs)


def calls(graph: Graph) -> list[Any]:
    return [n for n in graph.nodes if n.kind == "call"]


# -- what is in a graph ------------------------------------------------------------------------------------------------
def test_weights_carry_the_models_own_names_and_nodes_their_modules() -> None:
    module = Outer()
    graph = graph_of(module, torch.zeros(1, 3, 8, 6))
    names = {n.target for n in graph.nodes if n.kind == "param"}
    weights = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    assert names == weights | set(graph.constants)
    assert "blocks.0.shift" in names
    assert "model.weight" in names
    (constant,) = graph.constants.values()
    assert constant.tolist() == [1.0, 2.0, 3.0, 4.0]
    modules = {n.op: n.module for n in calls(graph)}
    assert modules["mul"] == "blocks.0"
    assert [n.module for n in calls(graph) if n.op == "conv2d"] == ["blocks.0.conv", "model"]
    assert modules["silu"] == ""


def test_height_and_width_are_symbols_even_where_they_are_equal() -> None:
    graph = graph_of(Outer(), torch.zeros(2, 3, 8, 8))
    n, c, height, width = graph.nodes[graph.inputs[0]].meta.shape
    assert (n, c) == (2, 3)
    assert isinstance(height, Size)
    assert isinstance(width, Size)
    assert height != width
    assert graph.row_symbol == height.expr
    assert graph.bind([(2, 3, 11, 5)]) == {height.expr: 11, width.expr: 5}
    assert graph.bind([(1, 3, 11, 5)]) is None


def test_a_graph_comes_back_from_json() -> None:
    graph = graph_of(Outer(), torch.zeros(1, 3, 8, 6))
    again = Graph.from_json(graph.to_json())
    assert [n.target for n in again.nodes] == [n.target for n in graph.nodes]
    assert again.to_json() == graph.to_json()


def test_a_graph_names_no_device_of_its_own() -> None:
    class Made(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(1, 1, x.shape[2], 1, device=x.device)

    (ones,) = [n for n in calls(graph_of(Made(), torch.zeros(1, 3, 8, 6))) if n.op == "ones"]
    assert ones.kwargs["device"] is DEVICE


def test_sizes_are_python_arithmetic_whatever_the_model_computes_with() -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            up = F.interpolate(x, scale_factor=1.5, mode="nearest")
            return F.pad(up, (0, -up.shape[-1] % 8)) * x.shape[-1] ** -0.5 + round(x.shape[-2] * 0.3)

    module = Sized()
    graph = graph_of(module, torch.zeros(1, 3, 8, 6))
    for shape in ((1, 3, 9, 7), (1, 3, 10, 16)):
        sizes = graph.bind([shape])
        assert sizes is not None
        x = torch.zeros(shape)
        got = [evaluate(s, sizes) for s in graph.nodes[graph.outputs[0]].meta.shape]
        assert got == list(module(x).shape)


def test_other_inputs_are_symbolic_too() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, hint: Tensor, scale: Tensor) -> Tensor:
            return F.interpolate(x, scale_factor=2.0) * hint + scale[:, :, None, None]

    graph = graph_of(Two(), torch.zeros(1, 3, 8, 6), torch.zeros(1, 3, 16, 12), torch.zeros(1, 3))
    assert len(graph.inputs) == 3
    assert graph.bind([(1, 3, 5, 4), (1, 3, 10, 8), (1, 3)]) is not None
    assert graph.bind([(1, 3, 5, 4), (1, 3, 11, 8), (1, 3)]) is None
    assert graph.bind([(1, 3, 5, 4), (1, 3, 10, 8), (2, 3)]) is None


def test_one_result_of_several_and_a_result_that_is_an_operand() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.chunk(3, dim=1)[1]

    graph = graph_of(Pair(), torch.zeros(1, 3, 8, 6))
    source, part = calls(graph)[0], graph.nodes[graph.outputs[0]]
    assert source.is_tuple
    assert len(source.outputs) == 3
    assert part.target == "operator.getitem"
    assert part.args[1] == 1
    assert isinstance(part.args[0], Ref)


# -- guards ------------------------------------------------------------------------------------------------------------
class Branching(nn.Module):
    """A stand-in for a VAE whose path depends on the size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        if x.shape[-2] * x.shape[-1] > 64:
            h = h * 2
        return torch.cat([h, x], 1) if x.shape[-1] % 2 else h - 1

    def decode(self, z: Tensor) -> Tensor:
        return self.conv(F.interpolate(z, scale_factor=2.0)) + z.mean()


def equals_the_model(model: Branching, side: str, shape: Sequence[int], strip: int = 2) -> TiledVAE:
    tiled = TiledVAE(model, "cpu", strip=strip)
    compare(tiled, model, side, shape)
    return tiled


def compare(tiled: TiledVAE, model: Branching, side: str, shape: Sequence[int]) -> None:
    x = torch.randn(*shape)
    with torch.no_grad():
        want = getattr(model, side)(x)
    torch.testing.assert_close(getattr(tiled, side)(x), want, rtol=1e-5, atol=1e-5)


def test_the_other_side_of_a_branch_is_captured_anew_and_both_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs of its own on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    traced: list[str] = []
    real = new_graph.capture

    def counted(*args: Any) -> Any:
        traced.append("once more")
        return real(*args)

    monkeypatch.setattr(new_graph, "capture", counted)
    model = Branching()
    tiled = equals_the_model(model, "encode", (1, 3, 4, 6))
    captures = len(traced)
    compare(tiled, model, "encode", (1, 3, 6, 8))
    assert len(traced) == captures  # the same side of every branch: 24 and 48 pixels, even widths
    compare(tiled, model, "encode", (1, 3, 9, 8))
    assert len(traced) > captures
    captures = len(traced)
    compare(tiled, model, "encode", (1, 3, 9, 9))
    assert len(traced) > captures
    captures = len(traced)
    for shape in ((1, 3, 7, 8), (1, 3, 20, 4), (1, 3, 13, 7)):
        compare(tiled, model, "encode", shape)
    assert len(traced) == captures


@pytest.mark.parametrize("side", ["encode", "decode"])
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 3, 1, 7), (1, 3, 7, 1), (1, 3, 2, 2), (2, 3, 1, 1)], ids=str)
def test_sizes_of_one_are_captured_at_their_own_size(side: str, shape: tuple[int, ...]) -> None:
    for strip in (1, 3):
        equals_the_model(Branching(), side, shape, strip)


def test_small_inputs_after_large_ones_and_large_after_small() -> None:
    model = Branching()
    tiled = TiledVAE(model, "cpu", strip=2)
    for shape in ((1, 3, 12, 8), (1, 3, 1, 1), (1, 3, 1, 8), (1, 3, 2, 8), (1, 3, 13, 8), (1, 3, 13, 1)):
        for side in ("encode", "decode"):
            compare(tiled, model, side, shape)


# -- what cannot be captured -------------------------------------------------------------------------------------------
class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x

    def decode(self, z: Tensor) -> Tensor:
        return z[:, :, z.argmax() :]


@pytest.mark.parametrize(
    ("side", "what"),
    [("encode", "DataDependent"), ("decode", "aten.slice.Tensor.*depends on values|data-dependent expression")],
)
def test_what_depends_on_values_is_one_line_that_does_not_advise_what_does_not_help(side: str, what: str) -> None:
    with pytest.raises(UnsupportedOp, match=what) as caught:
        getattr(TiledVAE(DataDependent(), "cpu", strip=2), side)(torch.randn(1, 3, 8, 8))
    assert "\n" not in str(caught.value)
    assert "allow_whole" not in str(caught.value)


def test_a_capture_logs_nothing_and_loggers_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, hint: Tensor) -> Tensor:
            return F.interpolate(x, scale_factor=2.0) * hint

    heard: list[str] = []

    def call(_self: logging.Logger, record: logging.LogRecord) -> None:
        if record.name != "torch.__trace":  # goes to a file that TORCH_TRACE names, and nowhere without it
            heard.append(record.getMessage())

    monkeypatch.setattr(logging.Logger, "callHandlers", call)
    logging.getLogger("torch").warning("before")
    graph_of(Two(), torch.zeros(1, 3, 1, 6), torch.zeros(1, 3, 2, 12))  # the exporter has views on sizes of one
    with pytest.raises(UnsupportedOp):
        graph_of(Two(), torch.zeros(1, 3, 4, 6), torch.zeros(1, 3, 7, 12))
    logging.getLogger("torch").warning("after")
    assert heard == ["before", "after"]


def test_an_exception_of_the_model_itself_is_told() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("height must be a multiple of 16\nand a second line")

    with pytest.raises(UnsupportedOp, match="multiple of 16") as caught:
        graph_of(Raises(), torch.zeros(1, 3, 8, 8))
    assert "second line" not in str(caught.value)
