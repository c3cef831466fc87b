"""Graphs drawn at random: whatever is connected to whatever."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from one_op import CPU, Draw, OneOp

from tvae.pipeline.engine.ir.graph import Graph, Ref
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower

CHANNELS, WIDTH = 4, 3


class RandomGraph:
    """Values of [2, 4, rows, 3] by the expression of their rows, and steps that make more of them."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.g = draw, OneOp(draw(st.integers(1, 8)), WIDTH)
        self.values: dict[str, list[Ref]] = {"h": [self.g.input(2, CHANNELS, "h", WIDTH)]}
        self.wholes: list[Ref] = [self.g.param(CHANNELS, 1, 1)]

    def pick(self) -> tuple[str, Ref]:
        """Some value and its rows."""
        rows = self.draw(st.sampled_from(sorted(self.values)))
        return rows, self.draw(st.sampled_from(self.values[rows]))

    def step(self) -> None:
        """One more operation, or the few that a layer is made of."""
        rows, x = self.pick()
        kind = self.draw(st.sampled_from([m for m in dir(self) if m.startswith("do_")]))
        made, rows = getattr(self, kind)(x, rows)
        self.values.setdefault(rows, []).append(made)

    def call(self, target: str, *args: Any, rows: str, channels: int = CHANNELS) -> Ref:
        """A call whose result is an image with these rows."""
        return self.g.call(target, *args, shape=(2, channels, rows, WIDTH))

    def do_conv(self, x: Ref, rows: str) -> tuple[Ref, str]:
        weight = self.g.param(CHANNELS, CHANNELS, 3, 3)
        return self.call("conv2d.default", x, weight, None, [1, 1], [1, 1], rows=rows), rows

    def do_causal_conv(self, x: Ref, rows: str) -> tuple[Ref, str]:
        padded = self.call("pad.default", x, [0, 0, 2, 0], "replicate", rows=f"{rows} + 2")
        weight = self.g.param(CHANNELS, CHANNELS, 3, 1)
        return self.call("conv2d.default", padded, weight, rows=rows), rows

    def do_down(self, x: Ref, rows: str) -> tuple[Ref, str]:
        weight, after = self.g.param(CHANNELS, CHANNELS, 3, 1), f"(({rows}) - 1)//2 + 1"
        return self.call("conv2d.default", x, weight, None, [2, 1], [1, 0], rows=after), after

    def do_up(self, x: Ref, rows: str) -> tuple[Ref, str]:
        if self.g.number(rows) > 20:
            return x, rows
        after = f"2*({rows})"
        return self.call("upsample_nearest2d.vec", x, None, [2.0, 1.0], rows=after), after

    def do_pad(self, x: Ref, rows: str) -> tuple[Ref, str]:
        after = f"{rows} + 5"
        return self.call("pad.default", x, [0, 0, 1, 4], "constant", 1.5, rows=after), after

    def do_crop(self, x: Ref, rows: str) -> tuple[Ref, str]:
        if self.g.number(rows) < 3:
            return x, rows
        after = f"{rows} - 2"
        return self.call("slice.Tensor", x, 2, 1, -1, rows=after), after

    def do_add(self, x: Ref, rows: str) -> tuple[Ref, str]:
        return self.call("add.Tensor", x, self.draw(st.sampled_from(self.values[rows])), rows=rows), rows

    def do_residual(self, x: Ref, rows: str) -> tuple[Ref, str]:
        """What the pass over residual sums makes: it may write over its operands."""
        first, _ = self.do_conv(x, rows) if self.draw(st.booleans()) else (x, rows)
        other = self.draw(st.sampled_from(self.values[rows]))
        return self.g.fused("residual", first, other, None, value=self.g.value(first) + self.g.value(other)), rows

    def do_block(self, x: Ref, rows: str) -> tuple[Ref, str]:
        """Two norms and convolutions, and their sum with what they began with, which is the last to read it."""
        first = self.do_conv(self.do_norm(x, rows)[0], rows)[0]
        second = self.do_conv(self.do_norm(first, rows)[0], rows)[0]
        return self.g.fused("residual", second, x, None, value=self.g.value(second) + self.g.value(x)), rows

    def do_activate(self, x: Ref, rows: str) -> tuple[Ref, str]:
        return self.call("tanh.default", x, rows=rows), rows

    def do_weight(self, x: Ref, rows: str) -> tuple[Ref, str]:
        return self.call("mul.Tensor", x, self.draw(st.sampled_from(self.wholes)), rows=rows), rows

    def do_norm(self, x: Ref, rows: str) -> tuple[Ref, str]:
        weight, bias = self.g.param(CHANNELS), self.g.param(CHANNELS)
        return self.call("group_norm.default", x, 2, weight, bias, 1e-3, rows=rows), rows

    def do_mean(self, x: Ref, rows: str) -> tuple[Ref, str]:
        mean = self.g.call("mean.dim", x, [2, 3], True, shape=(2, CHANNELS, 1, 1))
        self.wholes.append(self.g.call("add.Tensor", mean, self.wholes[0], shape=(2, CHANNELS, 1, 1)))
        return self.call("sub.Tensor", x, mean, rows=rows), rows

    def do_border(self, x: Ref, rows: str) -> tuple[Ref, str]:
        row = self.call("slice.Tensor", x, 2, 0, 1, rows="1")
        if self.draw(st.booleans()):
            return self.call("mul.Tensor", x, row, rows=rows), rows
        after = f"{rows} + 1"
        return self.g.call("cat.default", [row, x], 2, shape=(2, CHANNELS, after, WIDTH)), after

    def do_written(self, x: Ref, rows: str) -> tuple[Ref, str]:
        """A border row, or channels, of something else."""
        other = self.draw(st.sampled_from(self.values[rows]))
        if self.draw(st.booleans()):
            row = self.g.call("select.int", other, 2, self.draw(st.sampled_from([0, -1])), shape=(2, CHANNELS, WIDTH))
            return self.call("select_scatter.default", x, row, 2, 0, rows=rows), rows
        part = self.call("slice.Tensor", other, 1, 1, 3, rows=rows, channels=2)
        return self.call("slice_scatter.default", x, part, 1, 0, 2, rows=rows), rows

    def do_resize(self, x: Ref, rows: str) -> tuple[Ref, str]:
        if self.g.number(rows) > 20:
            return x, rows
        after, mode = f"({rows})*3//2", self.draw(st.sampled_from(["bilinear", "bicubic"]))
        aligned = self.draw(st.booleans())
        return self.call(f"upsample_{mode}2d.vec", x, [Size(after), WIDTH], aligned, None, rows=after), after

    def do_pool(self, x: Ref, rows: str) -> tuple[Ref, str]:
        return self.call("max_pool2d.default", x, [3, 1], [1, 1], [1, 0], rows=rows), rows

    def do_circular(self, x: Ref, rows: str) -> tuple[Ref, str]:
        after = f"{rows} + 2"
        return self.call("pad.default", x, [0, 0, 1, 1], "circular", rows=after), after

    def do_order(self, x: Ref, rows: str) -> tuple[Ref, str]:
        """Rows that lie far away: turned around, rolled, added up."""
        kind = self.draw(st.sampled_from(["flip", "roll", "cumsum"]))
        args: list[Any] = {"flip": [[2]], "roll": [[self.draw(st.integers(-3, 3))], [2]], "cumsum": [2]}[kind]
        made = self.call(f"{kind}.default", x, *args, rows=rows)
        return self.call("tanh.default", made, rows=rows), rows

    def do_softmax(self, x: Ref, rows: str) -> tuple[Ref, str]:
        return self.call("softmax.int", x, 2, rows=rows), rows

    def do_gate(self, x: Ref, rows: str) -> tuple[Ref, str]:
        """Squeeze-and-excite."""
        mean = self.g.call("adaptive_avg_pool2d.default", x, [1, 1], shape=(2, CHANNELS, 1, 1))
        gate = self.g.call("sigmoid.default", mean)
        return self.call("mul.Tensor", x, gate, rows=rows), rows

    def do_attention(self, x: Ref, rows: str) -> tuple[Ref, str]:
        g, length = self.g, f"({rows})*{WIDTH}"

        def tokens(value: Ref) -> Ref:
            flat = g.call("view.default", value, [2, CHANNELS, -1], shape=(2, CHANNELS, length))
            return g.call("transpose.int", flat, 1, 2, shape=(2, length, CHANNELS))

        others = [self.draw(st.sampled_from(self.values[rows])) for _ in range(2)]
        out = g.call("scaled_dot_product_attention.default", tokens(x), *map(tokens, others))
        back = g.call("transpose.int", out, 1, 2, shape=(2, CHANNELS, length))
        return self.call("reshape.default", back, [2, CHANNELS, Size(rows), -1], rows=rows), rows

    def do_split(self, x: Ref, rows: str) -> tuple[Ref, str]:
        parts = self.g.call("chunk.default", x, 2, 1, shape=[(2, 2, rows, WIDTH)] * 2)
        halves = [self.g.part(parts, 1), self.g.part(parts, 0)]
        return self.g.call("cat.default", halves, 1, shape=(2, CHANNELS, rows, WIDTH)), rows


def random_graph(data: Any, least: int = 1) -> tuple[OneOp, Program]:
    """A graph of up to nine steps, its last value and up to three others its outputs."""
    made = RandomGraph(data.draw)
    for _ in range(data.draw(st.integers(least, 9))):
        made.step()
    refs = [ref for group in made.values.values() for ref in group]
    outputs = data.draw(st.lists(st.sampled_from(refs), max_size=3))
    g = made.g.gives(refs[-1], *outputs, tolerance=1e-8)
    return g, lower(Graph.from_json(g.graph.to_json()), g.sizes, CPU)
