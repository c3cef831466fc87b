"""Decompose operations into those that the engine has rules for: second names, joins and splits, distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.capture.thread_patch import patched

__all__ = ["BY_PYTORCH", "BY_TVAE", "decomposing"]

_NAMES = (
    "absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh clip divide fix float_power greater greater_equal "
    "less less_equal multiply negative not_equal subtract true_divide "
    "special_erf special_erfc special_exp2 special_expit special_expm1 special_log1p special_log_softmax "
    "special_logsumexp special_round special_sinc special_softmax "
    "atleast_1d atleast_2d atleast_3d column_stack dstack hstack row_stack vstack cartesian_prod "
    "dsplit hsplit vsplit fliplr flipud ravel reshape_as sum_to_size swapdims broadcast_tensors imag real "
    "argsort cosine_similarity diff inner kl_div linalg_matrix_norm linalg_norm nanmean trapezoid"
)
BY_PYTORCH = frozenset(_NAMES.split())
"""Operations that PyTorch itself decomposes, and so their in-place forms."""


@contextmanager
def decomposing() -> Iterator[None]:
    """Make the exporter decompose these operations, in this thread."""
    import torch.fx.experimental.proxy_tensor as tracer

    place: Any = tracer
    original: Any = getattr(place, "maybe_handle_decomp", None)

    def handled(mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
        parts = _parts_of(op)
        if parts is None:
            return original(mode, op, args, kwargs)
        with mode:
            return parts(*args, **kwargs)

    with patched(place, "maybe_handle_decomp", handled):
        yield


def _parts_of(op: Any) -> Callable[..., Any] | None:
    parts = _known_parts(op)
    return None if parts is None or _is_cast(op) else parts


@lru_cache(1 << 12)
def _known_parts(op: Any) -> Callable[..., Any] | None:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return None
    name = op._schema.name.removeprefix("aten::")
    parts: Callable[..., Any] | None = op.decompose if name.removesuffix("_") in BY_PYTORCH else BY_TVAE.get(name)
    return parts


def _is_cast(op: Any) -> bool:
    """Return whether ``torch.autocast`` is on and casts this operation; its parts would be cast otherwise."""
    return any(
        torch.is_autocast_enabled(kind) and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), f"Autocast{key}")
        for kind, key in (("cpu", "CPU"), ("cuda", "CUDA"))
    )


def _tensordot(x: Tensor, y: Tensor, x_dims: Sequence[int], y_dims: Sequence[int]) -> Tensor:
    of_x = list(range(x.ndim))
    of_y = [x.ndim + d for d in range(y.ndim)]
    for i, j in zip(x_dims, y_dims, strict=True):
        of_y[j % y.ndim] = of_x[i % x.ndim]
    kept = [d for d in (*of_x, *of_y) if (d in of_x) != (d in of_y)]
    return torch.einsum(x, of_x, y, of_y, kept)


def _take_along_dim(x: Tensor, places: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return x.flatten().gather(0, places.flatten())
    dim %= x.ndim
    before = torch.broadcast_shapes(x.shape[:dim], places.shape[:dim])
    after = torch.broadcast_shapes(x.shape[dim + 1 :], places.shape[dim + 1 :])
    x, places = (t.expand(*before, t.shape[dim], *after) for t in (x, places))
    return x.gather(dim, places)


def _rot90(x: Tensor, times: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    first, second = dims
    times %= 4
    if times == 2:
        return x.flip([first, second])
    if times == 1:
        return x.flip([second]).transpose(first, second)
    return x.transpose(first, second).flip([second]) if times else x.clone()


def _pairwise_distance(x: Tensor, y: Tensor, p: float = 2, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x - y + eps, p, -1, keepdim)


def _aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = [*range(x.ndim)] if dim is None else [dim]
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


def _affine_grid(turn: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    """Return the positions of pixels, x first, under an affine map."""
    sizes = size[2:]
    by_place = turn[(slice(None), *[None] * len(sizes))].unbind(-1)
    grid = by_place[-1]
    for place, count in enumerate(reversed(sizes)):
        at = torch.arange(count, dtype=torch.float64, device=turn.device) * 2 - (count - 1)
        spread = at / (torch.sym_max(count - 1, 1) if align_corners else count)
        grid = grid + spread.to(turn.dtype).view(-1, *[1] * (place + 1)) * by_place[place]
    return grid


def _max_pool1d(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    by = [[1, *([n] if isinstance(n, int) else n)] for n in (kernel, stride or kernel, dilation)]
    zeros = [0, *([padding] if isinstance(padding, int) else padding)]
    return torch.max_pool2d(x.unsqueeze(-2), by[0], by[1], zeros, by[2], ceil_mode).squeeze(-2)


BY_TVAE: Mapping[str, Callable[..., Any]] = {
    "affine_grid_generator": _affine_grid,
    "aminmax": _aminmax,
    "max_pool1d": _max_pool1d,
    "pairwise_distance": _pairwise_distance,
    "rot90": _rot90,
    "take_along_dim": _take_along_dim,
    "tensordot": _tensordot,
}
"""Operations that PyTorch does not decompose, or only with constant sizes."""
