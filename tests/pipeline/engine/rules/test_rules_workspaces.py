"""What operations take beside their results on a GPU, as plans know it: no GPU is needed to ask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_functions import Fn, captured
from torch import Tensor, nn

from tvae.kernels import Kernels
from tvae.kernels.workspace import attention_bytes
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.passes.attention import use_wide_attention
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.plan.strip_cost import Step, strips_alike
from tvae.pipeline.engine.rules import attention

CUDA = torch.device("cuda", 0)


def steps_of(fn: Fn, name: str, rows: int, *, last: bool, level: str = "native") -> list[tuple[Op, Step]]:
    """All steps of an operation in strips of so many rows of 64."""
    graph = use_wide_attention(simplify(captured(fn)[0]))
    sizes = graph.bind([(1, 3, 64, 48)])
    assert sizes is not None
    program = lower(graph, sizes, CUDA, Kernels({"default": level}), channels_last=last)
    plan = schedule(program, rows)
    found = [s for segment in plan.segments for strip in strips_alike(program, segment, ()) for s in strip.steps]
    return [(step.op, step) for step in found if step.op.name == name]


def convolved(m: nn.Module, x: Tensor) -> Tensor:
    return m.conv(x)


def normalised(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    return F.silu(F.group_norm(h, 1))


@pytest.mark.parametrize(("fn", "name"), [(convolved, "conv2d"), (normalised, "norm_act")])
@pytest.mark.parametrize("last", [False, True])
def test_rows_out_of_a_buffer_are_copied_first(fn: Fn, name: str, last: bool) -> None:
    """Of one image with the channels innermost they lie in one piece."""
    for rows in 64, 8:
        found = steps_of(fn, name, rows, last=last)
        assert found
        for op, step in found:
            copied = step.workspace - op.workspace(step.rows)
            assert op.packs == (None if last else op.inputs[0])
            assert (copied >= step.rows * 3 * 48 * 4) if rows == 8 and not last else copied == 0


def attended(heads: int, width: int) -> Fn:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        """Rows and columns of pixels attend among their frames, as they do in Cosmos."""
        tokens = m.conv(x).to(torch.bfloat16)[:, :1].permute(2, 3, 0, 1).flatten(0, 1)
        q = tokens.unsqueeze(1).expand(-1, heads, -1, width)
        return F.scaled_dot_product_attention(q, q + 1, q * 2).transpose(0, 2)

    return fn


@pytest.mark.parametrize(("width", "each"), [(128, 0), (129, 4), (512, 4)])
def test_wide_heads_are_added_up_in_float32(width: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of two heads may not lie in rows: they are copied."""
    monkeypatch.setattr(attention, "_FEW_KEYS", 0)
    found = steps_of(attended(2, width), "scaled_dot_product_attention", 8, last=True)
    assert found
    for op, step in found:
        assert op.workspace(step.rows) == step.rows * op.row_bytes * (each / 2 + 3)


def test_few_keys_are_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands and result, and the result in 16 bits; not much more than so much at a time."""
    for most in 1 << 30, 1000:
        monkeypatch.setattr(attention, "_WIDENED", most)
        found = steps_of(attended(2, 512), "scaled_dot_product_attention", 8, last=True)
        assert found
        for op, step in found:
            result = step.rows * op.row_bytes
            assert op.workspace(step.rows) == (9 * result if most > 1000 else 9 * result / step.rows / op.axis.inner)


def crossed(keys: int) -> Fn:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        """Every pixel attends to a few tokens."""
        tokens = m.conv(x).to(torch.bfloat16).flatten(2).transpose(1, 2).unsqueeze(1)
        few = torch.ones(1, 1, keys, 3, dtype=torch.bfloat16, device=x.device)
        return F.scaled_dot_product_attention(tokens, few, few * 2).squeeze(1)

    return fn


@pytest.mark.parametrize("keys", [4, 256])
def test_queries_are_widened_by_rows(keys: int) -> None:
    """However many there are: a strip of them, beside all keys and values."""
    found = steps_of(crossed(keys), "scaled_dot_product_attention", 8, last=False)
    assert found
    for op, step in found:
        result = step.rows * op.row_bytes
        assert op.workspace(step.rows) == 2 * keys * 3 * 4 + 5 * result


def of_convolutions(width: int, dtype: torch.dtype) -> Fn:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        """One head, whose features are a convolution's channels."""
        h = m.conv(x)[:, :1].expand(-1, width, -1, -1).to(dtype) * 1
        q, k, v = (y.flatten(2).transpose(1, 2).unsqueeze(1) for y in (h, h + 1, h * 2))
        return F.scaled_dot_product_attention(q, k, v).squeeze(1)

    return fn


@pytest.mark.parametrize(("width", "name"), [(64, "scaled_dot_product_attention"), (512, "wide_attention")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_operands_that_lie_outside_rows_are_copied(width: int, name: str, dtype: torch.dtype, last: bool) -> None:
    """All keys and values, and the strip's queries; wide heads of 16 bits are added up in float32 as well."""
    found = steps_of(of_convolutions(width, dtype), name, 8, last=last)
    assert found
    for op, step in found:
        queries, tokens = step.rows * op.row_bytes, 64 * 48 * width * dtype.itemsize
        summed = 2 * queries if dtype == torch.bfloat16 and width == 512 else 0
        assert op.workspace(step.rows) == summed + (0 if last else queries + 2 * tokens)


@pytest.mark.parametrize(("last", "copies"), [(False, 3), (True, 0)])
@pytest.mark.parametrize(("width", "name"), [(64, "scaled_dot_product_attention"), (512, "wide_attention")])
def test_copies_where_every_row_attends_for_itself(last: bool, copies: int, width: int, name: str) -> None:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        tokens = m.conv(x)[:, :1].permute(2, 3, 0, 1).flatten(0, 1).unsqueeze(1)
        q = tokens.expand(-1, 1, -1, width) * 1
        return F.scaled_dot_product_attention(q, q + 1, q * 2).transpose(0, 2)

    found = steps_of(fn, name, 8, last=last)
    assert found
    for op, step in found:
        assert op.workspace(step.rows) == copies * step.rows * op.row_bytes


@pytest.mark.parametrize(
    ("width", "dtype", "fused"),
    [
        (512, torch.bfloat16, True),
        (288, torch.float16, False),
        (2048, torch.bfloat16, False),
        (512, torch.float32, False),
    ],
    ids=str,
)
def test_weights_count_where_a_kernel_of_ours_attends(width: int, dtype: torch.dtype, fused: bool) -> None:
    """64x48 keys: it takes 384 to 1024 channels of 16 bits."""
    found = steps_of(of_convolutions(width, dtype), "wide_attention", 8, last=True, level="triton")
    assert found
    for op, step in found:
        ours, theirs = attention_bytes(8 * 48, 64 * 48, width), 384 * width * (4 if dtype.itemsize == 2 else 0)
        assert op.workspace(step.rows) == (max(ours, theirs) if fused else theirs)
