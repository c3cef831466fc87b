"""All passes together, over layers in any order: the same numbers, strip by strip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import event, given, settings
from hypothesis import strategies as st
from one_op import CPU, Draw, OneOp, execute_strips, whole_values
from rewrites import Layers, Outputs, count, expect, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph, Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise

CHANNELS = 4
FUSED = ("norm_act", "residual", "conv_transpose2d")


class Chain:
    """A picture and what layers make of it, mostly of the last value; a value is (ref, rows, width)."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.g = OneOp(draw(st.integers(1, 5)), 2)
        self.n = draw(st.integers(1, 2))
        self.values = [(self.g.input(self.n, CHANNELS, "h", "w"), "h", "w")]

    def step(self) -> None:
        """One more layer."""
        at = -1 if self.draw(st.integers(0, 3)) else self.draw(st.integers(0, len(self.values) - 1))
        x, rows, width = self.values[at]
        kinds = [self.conv, self.norm, self.norm_silu, self.silu, self.add, self.block, self.up, self.up_conv]
        kind = self.draw(st.sampled_from([*kinds, self.token_norm, self.block, self.up_conv]))
        self.values.append(kind(x, rows, width))

    def call(self, target: str, *args: Any, rows: str, width: str) -> Ref:
        return self.g.call(target, *args, shape=(self.n, CHANNELS, rows, width))

    def conv(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        size = self.draw(st.sampled_from([3, 3, 3, 3, 1]))
        weight = self.g.param(value=self.g.draw_values((CHANNELS, CHANNELS, size, size)) / (2 * size))
        bias = self.g.param(CHANNELS) if self.draw(st.integers(0, 3)) else None
        pad = [size // 2] * 2
        return self.call("conv2d.default", x, weight, bias, [1, 1], pad, rows=rows, width=width), rows, width

    def norm(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        affine = [self.g.param(CHANNELS), self.g.param(CHANNELS)] if self.draw(st.booleans()) else [None, None]
        return self.call("group_norm.default", x, 2, *affine, 1e-2, False, rows=rows, width=width), rows, width

    def silu(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        return self.call("silu.default", x, rows=rows, width=width), rows, width

    def norm_silu(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        return self.silu(*self.norm(x, rows, width))

    def add(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        others = [ref for ref, r, w in self.values if (r, w) == (rows, width)]
        operands = self.draw(st.permutations([x, self.draw(st.sampled_from(others))]))
        return self.call("add.Tensor", *operands, rows=rows, width=width), rows, width

    def block(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        """What these models are made of: a residual block."""
        y = self.conv(*self.norm_silu(*self.conv(*self.norm_silu(x, rows, width))))
        return self.call("add.Tensor", x, y[0], rows=rows, width=width), rows, width

    def up(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        if self.g.number(rows) > 10:
            return x, rows, width
        factors = self.draw(st.sampled_from([(2, 2), (2, 2), (2, 2), (2, 1), (3, 2)]))
        after = f"{factors[0]}*({rows})", f"{factors[1]}*({width})"
        scales = [float(f) for f in factors]
        return self.call("upsample_nearest2d.vec", x, None, scales, rows=after[0], width=after[1]), *after

    def up_conv(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        if self.g.number(rows) > 10:
            return self.conv(x, rows, width)
        x = self.call("upsample_nearest2d.vec", x, None, [2.0, 2.0], rows=f"2*({rows})", width=f"2*({width})")
        return self.conv(x, f"2*({rows})", f"2*({width})")

    def token_norm(self, x: Ref, rows: str, width: str) -> tuple[Ref, str, str]:
        """A norm of tokens, as attention blocks have it, and the way back."""
        length = f"({rows})*({width})"
        flat = self.g.call("view.default", x, [self.n, CHANNELS, Size(length)], shape=(self.n, CHANNELS, length))
        y = self.g.call("group_norm.default", flat, 1, None, None, 1e-2, False)
        if self.draw(st.booleans()):
            y = self.g.call("silu.default", y)
        back = [self.n, CHANNELS, Size(rows), Size(width)]
        return self.call("view.default", y, back, rows=rows, width=width), rows, width


@given(data=st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_layers_in_any_order_keep_their_numbers(data: Any) -> None:
    chain = Chain(data.draw)
    for _ in range(data.draw(st.integers(2, 8))):
        chain.step()
    refs = [ref for ref, _, _ in chain.values]
    outputs = data.draw(st.lists(st.sampled_from(refs), max_size=2))
    g = chain.g.gives(refs[-1], *outputs, tolerance=1e-9, channels_last=data.draw(st.booleans()))
    subpixel, bias = data.draw(st.booleans()), data.draw(st.booleans())
    plain = Graph.from_json(g.graph.to_json())
    done = optimise(plain, subpixel=subpixel, bias=bias)
    assert plain.to_json() == g.graph.to_json()
    assert not {"group_norm"} & set(count(done))
    for op in set(FUSED) & set(count(done)):
        event(op)
    program = lower(Graph.from_json(done.to_json()), g.sizes, CPU)
    whole_values(program, g, data.draw)
    execute_strips(program, g, data.draw(st.integers(1, program.rows)))
    execute_strips(program, g, program.rows)


def decoder(m: Layers, x: Tensor) -> Outputs:
    """The shape of a decoder: residual blocks, attention's norm, upsampling, the last norm."""
    h = m.conv(x)
    h = h + m.mix(F.silu(m.norm2(m.conv(F.silu(m.norm(h))))))
    h = h + m.norm2(h.flatten(2)).unflatten(2, h.shape[2:])
    h = m.conv(F.interpolate(h, scale_factor=2.0, mode="nearest"))
    h = h + m.mix(F.silu(m.norm2(m.conv(F.silu(m.norm(h))))))
    return m.bare(F.silu(m.norm(h)))


NORMS = {"group_norm": 0, "silu": 0, "norm_act": 6}


def test_a_decoder_in_the_fewest_operations() -> None:
    """All who read a convolution's result take its bias; the sum behind attention stays as it is."""
    done = rewritten(decoder, lambda g: optimise(g, subpixel=True, bias=True))
    expect(done, {**NORMS, "residual": 2, "add": 1, "conv_transpose2d": 1, "conv2d": 6, "sum_of": 2})
    assert len(done.nodes) == sum(count(done).values()) + sum(node.kind != "call" for node in done.nodes)
    offsets = [node.args[5] is not None for node in done.nodes if node.op == "norm_act"]
    assert sum(offsets) == 4  # those of the two blocks
    assert [node for node in done.nodes if node.op.startswith("conv") and node.args[2:3] not in ((), (None,))] == []


def test_without_the_choices() -> None:
    done = rewritten(decoder, lambda g: optimise(g, subpixel=False, bias=False))
    expect(done, {**NORMS, "residual": 2, "add": 1, "conv_transpose2d": 0, "upsample_nearest2d": 1, "conv2d": 7})
    assert all(node.args[5] is None for node in done.nodes if node.op == "norm_act")


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_a_picture_of_one_row_and_lower_types(kind: torch.dtype) -> None:
    """The programs of the fused graph run where values are narrow: types fit, one row is enough."""
    g = OneOp(1, 3, kind)
    x = g.input(1, CHANNELS, "h", "w")
    weight, bias = g.param(value=g.draw_values((4, 4, 3, 3)) / 6), g.param(4)
    h = g.call("conv2d.default", x, weight, bias, [1, 1], [1, 1])
    y = g.call("silu.default", g.call("group_norm.default", h, 2, g.param(4), g.param(4), 1e-2, False))
    y = g.call("add.Tensor", g.call("conv2d.default", y, weight, bias, [1, 1], [1, 1]), h)
    y = g.call("add.Tensor", g.call("conv2d.default", y, weight, bias, [1, 1], [1, 1]), y)
    g.gives(y, tolerance=1e-5 if kind == torch.float32 else 5e-2)
    execute_strips(lower(optimise(g.graph, subpixel=True, bias=True), g.sizes, CPU), g, 1)


def test_pictures_of_other_sizes_and_batches() -> None:
    for shape in ((1, 4, 3, 8), (3, 4, 5, 2)):
        rewritten(decoder, lambda g: optimise(g, subpixel=True, bias=True), picture(*shape))
