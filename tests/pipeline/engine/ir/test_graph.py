"""The graph as JSON, its size expressions, and which shapes it serves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.engine.ir.graph import DEVICE, Graph, Meta, Node, Ref, map_refs
from tvae.pipeline.engine.ir.sizes import Size, evaluate

H, W = Size("h"), Size("w")


def image(*shape: int | Size) -> Node:
    return Node("input", "x", outputs=(Meta(shape, torch.float32),))


def graph_of(*shapes: tuple[int | Size, ...], guards: list[str] | None = None) -> Graph:
    nodes = [image(*shape) for shape in shapes]
    return Graph(nodes, list(range(len(nodes))), [0], guards or [], "h")


# -- JSON --------------------------------------------------------------------------------------------------------------
ARGUMENTS: dict[str, Any] = {
    "reference": Ref(0),
    "size": Size("8*h + 1"),
    "device": DEVICE,
    "dtype": torch.bfloat16,
    "layout": torch.strided,
    "memory format": torch.channels_last,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "none": None,
    "true": True,
    "integer": 2**63 - 1,
    "float": 0.1,
    "small float": 1e-300,
    "text": "reflect",
    "list of references": [Ref(0), Ref(0), None],
    "nested": [[Size("h"), 2], [-1, [torch.int64, DEVICE]]],
    "empty": [],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_comes_back_from_json(name: str) -> None:
    arg = ARGUMENTS[name]
    node = Node("call", "aten.f.default", (Ref(0), arg), {"k": arg}, "a.b", (Meta((2, H), torch.float16),))
    graph = Graph([image(1, 3, H, W), node], [0], [1], ["h >= 2"], "h")
    again = Graph.from_json(graph.to_json())
    assert again == graph
    assert type(again.nodes[1].args[1]) is type(arg)
    assert again.nodes[1].op == "f"
    assert again.nodes[1].meta.shape == (2, H)


def test_not_a_number_comes_back_from_json() -> None:
    graph = Graph([Node("call", "aten.f.default", (math.nan,))], [], [0])
    assert math.isnan(Graph.from_json(graph.to_json()).nodes[0].args[0])


def test_tuples_and_several_results_come_back_from_json() -> None:
    metas = (Meta((1, H), torch.int64), Meta((), torch.bool))
    graph = Graph([Node("call", "aten.split.Tensor", ((1, Size("h")),), outputs=metas, is_tuple=True)], [], [0])
    (node,) = Graph.from_json(graph.to_json()).nodes
    assert node.is_tuple
    assert node.outputs == metas
    assert list(node.args[0]) == [1, Size("h")]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([0.1, float("inf"), float("nan"), -0.0]),
        torch.tensor([[1.5, -2.25]], dtype=torch.bfloat16),
        torch.tensor(1e-30, dtype=torch.float64),
        torch.tensor([[True, False]]),
        torch.arange(6).view(2, 3) - 2**40,
        torch.empty(0, 3),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t(),
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_constants_come_back_bit_for_bit(value: torch.Tensor) -> None:
    graph = Graph([], [], [], constants={"c": value})
    again = Graph.from_json(graph.to_json()).constants["c"]
    assert again.dtype == value.dtype
    assert again.shape == value.shape
    torch.testing.assert_close(again, value, rtol=0, atol=0, equal_nan=True)
    if value.is_floating_point():
        assert torch.equal(again.signbit(), value.signbit())


def test_an_argument_that_cannot_be_kept_is_an_error() -> None:
    graph = Graph([Node("call", "aten.f.default", (object(),))], [], [0])
    with pytest.raises(TypeError, match="object"):
        graph.to_json()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "null", '{"nodes": [{}]}', '{"nodes": [], "inputs": 3}'], ids=repr
)
def test_other_text_is_an_error_that_a_cache_can_catch(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Graph.from_json(text)


@pytest.mark.parametrize("name", ["load", "ops", "nn.Module", "__builtins__", "float32.itemsize"])
def test_json_names_no_part_of_torch_but_its_types(name: str) -> None:
    graph = Graph([Node("call", "aten.f.default", (torch.float32,))], [], [0])
    text = graph.to_json().replace('{"torch": "float32"}', json.dumps({"torch": name}))
    with pytest.raises((ValueError, AttributeError)):
        Graph.from_json(text)


# -- references --------------------------------------------------------------------------------------------------------
def test_references_are_found_once_each_in_order() -> None:
    node = Node("call", "aten.f.default", ([Ref(3), (Ref(1), Size("h"))], Ref(3)), {"k": Ref(2)})
    assert list(node.reads) == [3, 1, 2]
    assert map_refs({"a": [Ref(1), 2]}, lambda r: r.id + 10) == {"a": [11, 2]}


def test_the_name_of_an_operation() -> None:
    assert Node("call", "aten.conv2d.default").op == "conv2d"
    assert Node("call", "operator.getitem").op == "getitem"
    assert Node("param", "encoder.conv_in.weight").op == "encoder.conv_in.weight"


# -- sizes -------------------------------------------------------------------------------------------------------------
@given(st.integers(1, 50), st.integers(1, 50))
def test_expressions_are_arithmetic(h: int, w: int) -> None:
    sizes = {"h": h, "w": w}
    assert evaluate(7, sizes) == 7
    assert evaluate(Size("(8*h + 1)//2 - h % 3"), sizes) == (8 * h + 1) // 2 - h % 3
    assert evaluate(Size("max(1, h - w)*min(h, w)**2"), sizes) == max(1, h - w) * min(h, w) ** 2
    assert evaluate(Size("abs(-h)"), sizes) == h
    assert evaluate(Size("h/w"), sizes) == h / w
    assert evaluate(Size("trunc(1.5*float(h)) + ceil(w/3) + floor(sqrt(h)) + round(0.3*w)"), sizes) == (
        3 * h // 2 + -(-w // 3) + math.isqrt(h) + round(0.3 * w)
    )
    guard = Size("h*w > 64 and not (h == 3 or w != 4) or -h >= -2")
    assert evaluate(guard, sizes) is ((h * w > 64 and not (h == 3 or w != 4)) or -h >= -2)


@pytest.mark.parametrize(
    "expr",
    [
        "__import__('os')",
        "().__class__",
        "h.real",
        "[h for h in (1,)]",
        "(lambda: 1)()",
        "h if h else w",
        "{1: h}[1]",
        "f'{h}'",
        "(h := 2)",
        "h @ w",
        "max(*[1, 2])",
        "max(h, default=1)",
    ],
)
def test_expressions_are_nothing_but_arithmetic(expr: str) -> None:
    with pytest.raises((ValueError, NameError)):
        evaluate(Size(expr), {"h": 2, "w": 3})


@pytest.mark.parametrize("name", ["open", "eval", "print", "__builtins__", "torch"])
def test_expressions_know_no_names_but_sizes(name: str) -> None:
    with pytest.raises((NameError, ValueError, TypeError)):
        evaluate(Size(f"{name}(1)"), {"h": 2})


@pytest.mark.parametrize("expr", ["", "h +", "h; w", "h = 2"])
def test_what_is_no_expression_is_an_error(expr: str) -> None:
    with pytest.raises(ValueError, match="not a size expression"):
        evaluate(Size(expr), {"h": 2, "w": 3})


# -- binding -----------------------------------------------------------------------------------------------------------
def test_sizes_are_bound_from_the_shapes() -> None:
    graph = graph_of((1, 3, H, W), (1, Size("2*h"), W), guards=["h >= 2", "h*w > 64"])
    assert graph.bind([(1, 3, 10, 7), (1, 20, 7)]) == {"h": 10, "w": 7}


@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 3, 10, 7)],
        [(1, 3, 10, 7), (1, 20, 7), (1,)],
        [(1, 3, 10), (1, 20, 7)],
        [(2, 3, 10, 7), (1, 20, 7)],
        [(1, 3, 10, 7), (1, 21, 7)],
        [(1, 3, 10, 7), (1, 20, 8)],
        [(1, 3, 8, 8), (1, 16, 8)],
        [(1, 3, 1, 90), (1, 2, 90)],
    ],
    ids=["too few", "too many", "rank", "batch", "derived", "twice", "product", "guard"],
)
def test_shapes_a_graph_does_not_serve(shapes: list[tuple[int, ...]]) -> None:
    graph = graph_of((1, 3, H, W), (1, Size("2*h"), W), guards=["h >= 2", "h*w > 64"])
    assert graph.bind(shapes) is None


@pytest.mark.parametrize("guard", ["u0 > 3", "h % (w - 7) == 0", "h/(w - 7) > 1", "f(h) > 1", "h.numel() > 1"])
def test_a_guard_that_has_no_value_means_the_graph_does_not_serve(guard: str) -> None:
    assert graph_of((1, 3, H, W), guards=[guard]).bind([(1, 3, 10, 7)]) is None


def test_a_size_that_no_input_gives_means_the_graph_does_not_serve() -> None:
    assert graph_of((1, 3, Size("h*k"), W)).bind([(1, 3, 10, 7)]) is None
    assert graph_of((1, 3, Size("h//(w - 7)"), W), (H,)).bind([(1, 3, 10, 7), (2,)]) is None
