"""Tensors for checksums: every type, every way to lie in memory; and ways to change them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["CHANGES", "TYPES", "laid_out", "random_bytes", "random_of"]

TYPES = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


def random_bytes(count: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def random_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    """Any bits, not-a-numbers among them."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return (random_bytes(count, seed) > 127).view(shape)
    return random_bytes(count * dtype.itemsize, seed).view(dtype).view(shape)


def laid_out(device: torch.device | str = "cpu") -> dict[str, tuple[Tensor, Tensor]]:
    """By name: a tensor, and its bytes in the order of memory, where that does not skip any."""

    def bytes_of(t: Tensor) -> Tensor:
        return t.contiguous().view(torch.uint8).flatten()

    base = random_of(torch.float32, 6, 5, 4, 3).to(device)
    run = random_bytes(4099).to(device)
    halves = random_of(torch.float16, 3001).to(device)
    last = base.contiguous(memory_format=torch.channels_last)
    found = {
        "contiguous": (base, bytes_of(base)),
        "channels last": (last, bytes_of(last.permute(0, 2, 3, 1))),
        "permuted": (base.permute(3, 1, 0, 2), bytes_of(base)),
        "transposed": (base.flatten(1).t(), bytes_of(base)),
        "one row": (base[2:3, 1], bytes_of(base[2, 1])),
        "nothing": (base[:0], run[:0]),
        "nothing at an end": (base[6:], run[:0]),
        "scalar": (base[1, 2, 3, 2], bytes_of(base[1, 2, 3, 2:3])),
        "columns": (base[..., ::2], bytes_of(base[..., ::2])),
        "columns, permuted": (base[..., 1:].permute(1, 3, 0, 2), bytes_of(base[..., 1:])),
        "expanded": (base[0, 0, 0].expand(4, 2, 3), bytes_of(base[0, 0, 0])),
        "expanded, with holes": (base[0, :, 0, ::2].unsqueeze(0).expand(7, 5, 2), bytes_of(base[0, :, 0, ::2])),
        "a single step": (base[0, 0, 0].as_strided((1, 3), (17, 1)), bytes_of(base[0, 0, 0])),
        "conjugate": (torch.view_as_complex(base[..., :2].contiguous()).conj(), bytes_of(base[..., :2])),
        "overlapping": (run.as_strided((5, 8), (3, 1)), run.as_strided((5, 8), (3, 1)).flatten()),
        "holes and overlaps of one span": (run.as_strided((2, 2, 3), (5, 4, 1)), None),
        "large": (run, run),
        "a half later": (halves[1:], bytes_of(halves[1:])),
    }
    for offset in range(1, 9):
        found[f"from byte {offset}"] = (run[offset : 2000 + 3 * offset], run[offset : 2000 + 3 * offset])
    for count in (1, 2, 7, 8, 9, 15, 16, 17, 511, 512, 513, 1024, 1536):
        found[f"{count} bytes"] = (run[16 : 16 + count], run[16 : 16 + count])
    t = found["holes and overlaps of one span"][0]
    found["holes and overlaps of one span"] = (t, t.permute(0, 1, 2).flatten())
    return found


def _swapped(x: Tensor) -> None:
    x.view(-1)[[3, 40]] = x.view(-1)[[40, 3]]


def _carried(x: Tensor) -> None:
    x.view(-1)[3] += 1
    x.view(-1)[40] -= 1


def _one_bit(x: Tensor) -> None:
    x.view(torch.uint8).view(-1)[-1] ^= 128


def _words_swapped(x: Tensor) -> None:
    words = x.view(torch.int64).view(-1)
    words[[0, 1]] = words[[1, 0]]


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "two elements swapped": _swapped,
    "neighbouring words swapped": _words_swapped,
    "one up and one down": _carried,
    "the last sign": _one_bit,
    "reversed": lambda x: x.copy_(x.flatten().flip(0).view_as(x)),
    "rolled by one": lambda x: x.copy_(x.flatten().roll(1).view_as(x)),
    "rolled by a row": lambda x: x.copy_(x.roll(1, 0)),
    "negated": lambda x: x.neg_(),
    "rows permuted": lambda x: x.copy_(x[[1, 0, *range(2, len(x))]]),
    "columns permuted": lambda x: x.copy_(x[:, [1, 0, *range(2, x.shape[1])]]),
    "zeros": lambda x: x.zero_(),
    "doubled": lambda x: x.mul_(2),
    "transposed": lambda x: x.copy_(x.t().clone()),
}
"""Of [n, n] floating values, in place."""
