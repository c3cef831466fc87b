"""Operations that others say as well: the graph has those, for every size, and their numbers are the operation's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from small_functions import captured, run
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.decompositions import BY_PYTORCH, BY_TVAE
from tvae.pipeline.engine.passes import simplify

Fn = Callable[[Tensor], Tensor]

_UNIT = "arccos arcsin arctanh"
_UNARY = "absolute arctan arcsinh fix negative fliplr flipud special_erf special_erfc special_exp2 special_expit "
_UNARY += "special_expm1 special_log1p special_sinc special_round"
CALLS: dict[str, Fn] = {
    **{n: lambda x, n=n: getattr(torch, n)(x.sigmoid() * 0.9) for n in _UNIT.split()},  # type: ignore[misc]
    **{
        n: lambda x, n=n: getattr(torch.ops.aten, n)(x.abs())  # type: ignore[misc]
        for n in _UNARY.split()
    },
    "arccosh": lambda x: torch.arccosh(1 + x.abs()),
    "arctan2": lambda x: torch.arctan2(x, x + 1),
    "clip": lambda x: x.clip(-0.5, 0.5) + x.clone().clip_(min=0),
    "divide": lambda x: x.divide(3) + x.clone().divide_(2),
    "float_power": lambda x: x.abs().float_power(1.5).float(),
    "greater": lambda x: x.greater(0) * x,
    "greater_equal": lambda x: x.greater_equal(0.1) * x,
    "less": lambda x: x.less(0) * x,
    "less_equal": lambda x: x.less_equal(x.mean()) * x,
    "multiply": lambda x: x.clone().multiply_(x) + x.multiply(2),
    "not_equal": lambda x: x.not_equal(0) * x,
    "subtract": lambda x: x.subtract(x.mean(2, keepdim=True), alpha=2),
    "true_divide": lambda x: x.true_divide(1 + x.square()),
    "special_log_softmax": lambda x: torch.special.log_softmax(x, 1),
    "special_logsumexp": lambda x: torch.special.logsumexp(x, 2, keepdim=True) * x,
    "special_softmax": lambda x: torch.special.softmax(x, 2),
    "atleast_1d": lambda x: torch.atleast_1d(x),
    "atleast_2d": lambda x: torch.atleast_2d(x[0, 0]),
    "atleast_3d": lambda x: torch.atleast_3d(x[0, 0]),
    "column_stack": lambda x: torch.column_stack([x, x * 2]),
    "dstack": lambda x: torch.dstack([x, x * 2]),
    "hstack": lambda x: torch.hstack([x, x * 2]),
    "row_stack": lambda x: torch.row_stack([x, x * 2]),
    "vstack": lambda x: torch.vstack([x, x * 2]),
    "cartesian_prod": lambda x: _pairs(x),
    "dsplit": lambda x: torch.dsplit(torch.cat([x, -x], 2), 2)[1],
    "hsplit": lambda x: torch.hsplit(x, [1])[1],
    "vsplit": lambda x: torch.vsplit(torch.cat([x, -x]), 2)[1],
    "ravel": lambda x: x.ravel().view(x.shape) * 2,
    "reshape_as": lambda x: x.flatten(2).reshape_as(x) * 2,
    "sum_to_size": lambda x: x.sum_to_size(1, 3, x.shape[2], 1),
    "swapdims": lambda x: x.swapdims(1, 2).cumsum(2).swapdims(2, 1),
    "broadcast_tensors": lambda x: torch.ops.aten.broadcast_tensors([x, x[:, :, :1]])[1] * x,
    "imag": lambda x: torch.polar(x.abs(), x).imag,
    "real": lambda x: torch.polar(x.abs(), x).real,
    "argsort": lambda x: x.argsort(1) * x,
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1, 1)[:, None] * x,
    "diff": lambda x: x.diff(dim=2, prepend=x[:, :, :1]) + x.diff(n=2, dim=-2).mean((2, 3), keepdim=True),
    "inner": lambda x: torch.inner(x.permute(0, 2, 3, 1), torch.eye(3) * 2),
    "kl_div": lambda x: F.kl_div(x, x.sigmoid(), reduction="none"),
    "linalg_matrix_norm": lambda x: torch.linalg.matrix_norm(x, keepdim=True) * x,
    "linalg_norm": lambda x: torch.linalg.norm(x, dim=(2, 3), keepdim=True) + torch.linalg.norm(x) * x,
    "nanmean": lambda x: x.log().nanmean((2, 3), keepdim=True) * x,
    "trapezoid": lambda x: torch.trapezoid(x, dim=1)[:, None] * x,
    "affine_grid_generator": lambda x: _turned(x, True) + _turned(x, False),
    "aminmax": lambda x: _scaled(x) + x.aminmax(dim=1, keepdim=True)[0] + x.aminmax(dim=2, keepdim=True)[1],
    "max_pool1d": lambda x: F.max_pool1d(x.flatten(2), 3, 1, 1).view(x.shape) + F.max_pool1d(x[0], 3, 1, 1),
    "pairwise_distance": lambda x: F.pairwise_distance(x.movedim(1, -1), x.movedim(1, -1) * 2, keepdim=True),
    "rot90": lambda x: torch.cat([x.rot90(k, (1, 2)).rot90(-k, (1, 2)) + x.rot90(2 * k, (2, 3)) for k in range(-1, 4)]),
    "take_along_dim": lambda x: x.take_along_dim(x.argmax(1, keepdim=True), 1) * x + x.take_along_dim(x.argsort(1), 1),
    "tensordot": lambda x: torch.tensordot(x, torch.eye(3) * 2, dims=([1], [0])) + torch.tensordot(x, x[0], 3).sum(),
}


def _pairs(x: Tensor) -> Tensor:
    return torch.cartesian_prod(torch.arange(x.shape[2]), torch.arange(x.shape[3])).view(*x.shape[2:], 2)[..., 0] * x


def _turned(x: Tensor, corners: bool) -> Tensor:
    turn = torch.stack([x.mean((2, 3)), x.amax((2, 3))], 1)
    flat = F.affine_grid(turn, list(x.shape), align_corners=corners)
    turn = torch.stack([x.mean((2, 3)), x.amax((2, 3)), x.amin((2, 3))], 1)
    clip = F.affine_grid(turn.repeat(1, 1, 2)[..., :4], [1, 3, 2, *x.shape[2:]], align_corners=corners)
    return flat + clip[:, 0, ..., :2]


def _scaled(x: Tensor) -> Tensor:
    low, high = torch.aminmax(x)
    return (x - low) / (high - low)


def test_each_is_called_by_a_test() -> None:
    assert set(CALLS) == BY_PYTORCH | set(BY_TVAE)


@pytest.mark.parametrize("name", CALLS)
def test_the_graph_has_the_parts(name: str) -> None:
    graph, module = captured(lambda m, x: CALLS[name](m.conv(x)))  # type: ignore[operator]
    assert name not in {node.op.removesuffix("_") for node in graph.nodes if node.kind == "call"}
    for size in ((7, 5), (12, 9)):
        x = torch.randn(1, 3, *size)
        with torch.no_grad():
            want = CALLS[name](module.conv(x))  # type: ignore[operator]
        got = run(simplify(graph), module.state_dict(), x)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["clip", "cosine_similarity", "linalg_norm", "tensordot", "diff"])
@torch.no_grad()
def test_types_under_autocast_are_those_of_the_operation(name: str) -> None:
    calls = CALLS | {"tensordot": lambda x: torch.tensordot(x, x.new_ones(3, 3), dims=([1], [0]))}

    class Lower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((3, 3, 1, 1), 0.5))

        def encode(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return calls[name](F.conv2d(x, self.scale))

        decode = encode

    model, x = Lower().eval(), torch.randn(1, 3, 16, 12)
    want, got = model.encode(x), TiledVAE(model, "cpu", strip=3).encode(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0)
