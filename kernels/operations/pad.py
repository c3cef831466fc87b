"""Borders around a map, with a normalisation on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels import functional
from tvae.kernels.operation import A_COPY, LIMITED, Operation
from tvae.kernels.operations.norm_act import norm_act
from tvae.kernels.oracle import Case, Maps, Oracle, bytes_of, scaled

__all__ = ["OPERATION", "case", "pad"]


def pad(x: Tensor, amounts: Sequence[int], mode: str, affine: Tensor | None = None, act: str | None = None) -> Tensor:
    """x_nc* with rows and columns around it, zeros (``constant``) or its own (``replicate``, ``reflect``).

    amounts: as for ``F.pad``, the last dimension first. With ``affine`` it is norm_act(x, affine, act) that is padded.
    """
    return functional.pad(x if affine is None else norm_act(x, affine, act), list(amounts), mode)


def case(make: Oracle, label: str, x: Tensor, amounts: Sequence[int], mode: str, act: str | None = "-") -> Case:
    """act: None and "silu" for a norm on the way, "-" for none."""
    y, affine = x.double(), None
    if act != "-":
        affine = make.affine(*x.shape[:2])
        y = scaled(x, affine, act)
    for i in range(len(amounts) // 2):
        dim, before, after = x.ndim - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        size = y.shape[dim]
        at = torch.arange(-before, size + after, device=make.device)
        if mode == "reflect":
            at = (size - 1) - ((size - 1) - at.abs()).abs()
        kept = y.index_select(dim, at.clamp(0, size - 1))
        outside = ((at < 0) | (at >= size)).view(-1, *[1] * i)
        y = kept.masked_fill(outside, 0.0) if mode == "constant" else kept
    moved = bytes_of(x) + y.numel() * x.element_size()
    given = (x, list(amounts), mode, affine, None if act == "-" else act)
    return make.case(label, given, expected=y, moved=moved)


def _measured(make: Oracle, size: int, channels: int) -> Case:
    return case(make, "measured", make.picture(1, channels, size, size), (1, 1, 1, 1), "replicate", "silu")


def _small(make: Oracle, maps: Maps) -> list[Case]:
    return [
        *(case(make, label, x, (1, 2, 0, 3), "constant") for label, x in maps.each()),
        case(make, "causal", maps.clip, (1, 1, 1, 1, 2, 0), "replicate", "silu"),
        case(make, "reflected", maps.batch, (2, 1, 3, 2), "reflect"),
        case(make, "normalised", maps.band, (0, 1, 0, 1), "constant", None),
    ]


OPERATION = Operation(pad, _measured, _small, left_out={"script": A_COPY, "compile": A_COPY, "cuda": LIMITED})
