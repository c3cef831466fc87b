"""The operations of this level: the definitions are in ``tvae.kernels.operations``.

``ring`` and ``form`` are for measurements: the defaults are the card's. A ring that does not fit is a ValueError.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.kernels.cuda.launch import Launch, card, load, resident
from tvae.kernels.cuda.maps import ELEMENTS, Layout, common
from tvae.kernels.cuda.ring import FORMS, VECTOR_BYTES, Card, Ring, geometry
from tvae.kernels.layout import channels_last
from tvae.kernels.registry import Unsupported

__all__ = ["add_stats", "group_stats", "norm_act", "prepare"]

_NORMS = {None: "norm_plain", "silu": "norm_silu"}


class _Call(NamedTuple):
    """A launch and all its arguments but the pointers; ``blocks`` of a sample."""

    launch: Launch
    blocks: int
    arguments: tuple[int, ...]


def prepare(dtype: torch.dtype, device: int) -> None:
    """Build and load the kernels for maps of a type."""
    if dtype in ELEMENTS:
        load("stats", _form_for(card(device), None), _macros(dtype, Ring()), device)


def group_stats(x: Tensor, *, ring: Ring | None = None, form: str | None = None) -> Tensor:
    """See ``operations.group_stats``: one block of pixels for each block of threads."""
    _check(x)
    call = _call("stats", (_layout(x), None, _layout(x)), x.dtype, x.device.index, ring, form)
    parts = _parts(x, call)
    call.launch(_at(x), 0, 0, 0, 0, parts.data_ptr(), *call.arguments)
    return parts


def norm_act(
    x: Tensor, affine: Tensor, act: str | None, *, ring: Ring | None = None, form: str | None = None
) -> Tensor:
    """See ``operations.norm_act``; computed in float32 and rounded once. The result is dense, channels innermost."""
    _check(x, affine)
    if act not in _NORMS:
        raise Unsupported(f"activation '{act}'")
    if affine.dtype != torch.float32 or affine.shape != (2, *x.shape[:2]) or not affine.is_contiguous():
        raise Unsupported("factors other than a dense float32 [2, N, C]")
    strides = channels_last(tuple(x.shape))
    layouts = _layout(x), None, (tuple(x.shape), strides)
    call = _call(_NORMS[act], layouts, x.dtype, x.device.index, ring, form)
    at = _at(x)
    y = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
    call.launch(at, 0, y.data_ptr(), affine.data_ptr(), 1, 0, *call.arguments)
    return y


def add_stats(
    x: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    stats: bool,
    *,
    ring: Ring | None = None,
    form: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.add_stats``; the sum is taken in float32 and rounded once. ``out`` may be x or the residual."""
    given = [t for t in (residual, bias, out) if t is not None]
    _check(x, *given)
    if residual is None and bias is None:
        if out is not None and out is not x:
            raise Unsupported("a copy, nothing to add")
        return x, group_stats(x, ring=ring, form=form) if stats else None
    if any(t.dtype != x.dtype or t.shape != x.shape for t in (residual, out) if t is not None):
        raise Unsupported("maps of different types or shapes")
    if bias is not None and (bias.dtype not in (x.dtype, torch.float32) or bias.stride() != (1,)):
        raise Unsupported("a bias of another type, or one that is not dense")
    strides = channels_last(tuple(x.shape))
    to = (tuple(x.shape), strides) if out is None else _layout(out)
    name = ("add_bias" if residual is None else "add_residual") + ("_stats" if stats else "")
    layouts = _layout(x), None if residual is None else _layout(residual), to
    call = _call(name, layouts, x.dtype, x.device.index, ring, form)
    sources = _at(x), 0 if residual is None else _at(residual)
    y = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device) if out is None else out
    parts = _parts(x, call) if stats else None
    factors = (0, 0) if bias is None else (bias.data_ptr(), int(bias.dtype == torch.float32))
    call.launch(*sources, _at(y), *factors, 0 if parts is None else parts.data_ptr(), *call.arguments)
    return y, parts


def _check(*tensors: Tensor) -> None:
    """Unsupported for tensors that are not on one CUDA device, or that want a gradient."""
    if any(t.device != tensors[0].device or not t.is_cuda for t in tensors):
        raise Unsupported("not on a CUDA device")
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise Unsupported("no gradients at this level")


def _layout(x: Tensor) -> Layout:
    return tuple(x.shape), x.stride()


def _at(x: Tensor) -> int:
    """The address of a map."""
    address = x.data_ptr()
    if address % VECTOR_BYTES:
        raise Unsupported(f"a map that does not start at a multiple of {VECTOR_BYTES} bytes")
    return address


def _parts(x: Tensor, call: _Call) -> Tensor:
    return torch.empty((x.shape[0], call.blocks, 3, x.shape[1]), dtype=torch.float64, device=x.device)


@lru_cache(maxsize=4096)
def _call(
    name: str,
    layouts: tuple[Layout, Layout | None, Layout],
    dtype: torch.dtype,
    device: int,
    ring: Ring | None,
    form: str | None,
) -> _Call:
    """The launch for (x, residual, y) of these layouts."""
    x, residual, y = layouts
    maps = common((x, residual or x, y), dtype)
    here = card(device)
    chosen, form = ring or Ring(), _form_for(here, form)
    reads, stats = 1 if residual is None else 2, name.endswith("stats")
    samples, outer, pixels, _ = maps.size
    cut = geometry(maps.size, dtype.itemsize, reads, stats, ring, form, here)
    kernel = load(name, form, _macros(dtype, chosen), device)
    together = here.multiprocessors * min(chosen.blocks, resident(kernel, cut.threads, cut.shared, device))
    blocks = max(1, min(together // samples, outer * cut.per_run))
    launch = Launch(kernel, samples * blocks, cut.threads, cut.shared, device)
    strides = (s for one in maps.strides for s in one)
    return _Call(launch, blocks, (blocks, outer, pixels, cut.per_run, cut.tile, cut.groups, cut.lanes, *strides))


def _macros(dtype: torch.dtype, ring: Ring) -> tuple[tuple[str, int], ...]:
    return ("ELEMENT", ELEMENTS[dtype]), ("STAGES", ring.stages), ("PREFETCH", ring.prefetch)


def _form_for(here: Card, wanted: str | None) -> str:
    """The ring's form that is wanted, or the newest that the card runs."""
    fitting = [f for f, major in FORMS.items() if here.capability[0] >= major]
    if not fitting or (wanted is not None and wanted not in fitting):
        raise Unsupported(f"compute capability {here.capability}")
    return wanted or fitting[0]
