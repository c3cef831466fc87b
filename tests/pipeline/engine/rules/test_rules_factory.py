"""Rules of values born without a tiled operand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import LAYOUTS, Case, Draw, OneOp, any_layout, check, heights, image, tokens, widths

from tvae.pipeline.engine.ir.graph import DEVICE
from tvae.pipeline.engine.ir.sizes import Size


def constant(draw: Draw, op: str) -> OneOp:
    """One value everywhere, with rows, with tokens, or with a tiled prototype only."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    fill: tuple[float, ...] = (2.5,) if "full" in op else ()
    kwargs = {"dtype": torch.float64, "device": DEVICE, "pin_memory": False}
    overload = "memory_format" if op == "empty" else "default"
    prototype = (x,) if op.startswith("new_") else ()
    if draw(st.booleans()):
        made = g.call(f"{op}.{overload}", *prototype, [2, Size("h*w"), 4], *fill, shape=(2, "h*w", 4), **kwargs)
        if "empty" in op:
            g.values[made.id] = torch.zeros_like(g.value(made))
        return g.gives(g.call("add.Tensor", tokens(g), made), tolerance=0)
    if op.startswith("new_") and draw(st.booleans()):
        made = g.call(f"{op}.default", x, [2, 4, 1, 1], *fill, shape=(2, 4, 1, 1), **kwargs)
    else:
        size, shape = [2, 4, Size("h + 1"), Size("w")], (2, 4, "h + 1", "w")
        made = g.call(f"{op}.{overload}", *prototype, size, *fill, shape=shape, **kwargs)
    if "empty" in op:  # what is in it is no promise; only what becomes of it is
        g.values[made.id] = torch.zeros_like(g.value(made))
    return g.gives(made, g.call("neg.default", x), tolerance=0)


def empty_like(draw: Draw, op: str) -> OneOp:
    """In any layout."""
    g = OneOp(draw(heights), draw(widths))
    x = LAYOUTS[draw(any_layout)](g)
    made = g.call("empty_like.default", x)
    g.values[made.id] = torch.zeros_like(g.value(made))
    return g.gives(g.call("add.Tensor", x, made), tolerance=0)


def triangle(draw: Draw, op: str) -> OneOp:
    """Queries and keys in rows, with and without a diagonal; rows in the batch of triangles."""
    g = OneOp(draw(heights), draw(widths))
    x, diagonal = image(g), draw(st.integers(-3, 3))
    kind = draw(st.sampled_from(["rows", "keys whole", "batch"]))
    if kind == "batch":
        x = g.call("permute.default", x, [0, 2, 1, 3], shape=(2, "h", 4, "w"))
        return g.gives(g.call(f"{op}.default", x, diagonal), tolerance=0)
    if kind == "keys whole":
        return g.gives(g.call(f"{op}.default", x, diagonal), tolerance=0)
    square = g.call("new_ones.default", x, [Size("h"), Size("h")], shape=("h", "h"))
    made = g.call(f"{op}.default", square) if draw(st.booleans()) else g.call(f"{op}.default", square, diagonal)
    return g.gives(made, g.call("neg.default", x), tolerance=0)


def arange(draw: Draw, op: str) -> OneOp:
    """Every overload, whole and fractional steps, in every type, over rows and over tokens."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    size = draw(st.sampled_from(["h", "h*w"]))
    start, step = draw(st.integers(-3, 3)), draw(st.sampled_from([1, 2, 0.1]))
    kind = draw(st.sampled_from(["default", "start", "start_step"]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64] + [torch.int64] * (step != 0.1)))
    if kind == "start_step":
        end = Size(f"{start} + {size}*{step} - {step}*0.5") if step == 0.1 else Size(f"{start} + {size}*{step}")
        args: tuple[Any, ...] = (start, end, step)
    else:
        args = (start, Size(f"{start} + {size}")) if kind == "start" else (Size(size),)
    made = g.call(f"arange.{kind}", *args, dtype=dtype, device=DEVICE, shape=(size,))
    if size == "h*w":  # positions of tokens
        made = g.call("add.Tensor", tokens(g, 1, 1), g.call("unsqueeze.default", made, -1, shape=(size, 1)))
    return g.gives(made, x, tolerance={torch.float32: 1e-6, torch.float64: 1e-14, torch.int64: 0}[dtype])


def identity(draw: Draw, op: str) -> OneOp:
    """Of tokens among themselves, of rows, and with other sizes."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    size = draw(st.sampled_from(["h", "h*w"]))
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bool]))
    if draw(st.booleans()):
        made = g.call("eye.default", Size(size), dtype=dtype, device=DEVICE, shape=(size, size))
    elif draw(st.booleans()):
        made = g.call("eye.m", 5, Size(size), dtype=dtype, device=DEVICE, shape=(5, size))
    else:
        made = g.call("eye.m", Size(size), 5, dtype=dtype, device=DEVICE, shape=(size, 5))
    return g.gives(made, x, tolerance=0)


def noise(draw: Draw, op: str) -> OneOp:
    """The draw of the untiled model, whatever the strips."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    kwargs = {"dtype": torch.float32, "device": DEVICE, "pin_memory": False}
    if op.endswith("_like"):
        made = g.call(f"{op}.default", x, **kwargs)
    else:
        made = g.call(f"{op}.default", [2, 1, Size("h"), Size("w")], shape=(2, 1, "h", "w"), **kwargs)
    return g.gives(g.call("add.Tensor", x, made), tolerance=0)


CASES: dict[str, Case] = {
    "empty_like": empty_like,
    **dict.fromkeys(["zeros", "new_zeros", "empty", "new_empty", "ones", "new_ones", "full", "new_full"], constant),
    "arange": arange,
    "eye": identity,
    **dict.fromkeys(["tril", "triu"], triangle),
    **dict.fromkeys(["randn", "rand", "randn_like", "rand_like"], noise),
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
