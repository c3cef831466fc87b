"""Checksums in the host's memory: every write is seen, whichever bits of the words it turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checksum_inputs import CHANGES
from torch import Tensor

from tvae.kernels.checksum_on_host import HostChecksums

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TURNS: dict[str, Callable[[Tensor], object]] = {
    "all signs": lambda x: x.neg_(),
    "every second sign": lambda x: x[1::2].neg_(),
    "every fourth sign": lambda x: x[3::4].neg_(),
    "exponents by one": lambda x: x.mul_(2),
    "exponents by four": lambda x: x.mul_(16),
    "exponents by eight": lambda x: x.mul_(256),
}
WORDS = (*range(4, 100, 2), 4096, 8192, 4096 * 40 + 6)
"""Less than a row of the sums, whole rows, more rows than are taken at once and a rest."""


def sum_of(x: Tensor) -> int:
    return int(HostChecksums([x])().item())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("turn", TURNS)
def test_changes_at_the_top_of_words_do_not_cancel(turn: str, dtype: torch.dtype) -> None:
    for count in WORDS:
        x = torch.randn(count * 8 // dtype.itemsize, generator=torch.Generator().manual_seed(count)).to(dtype)
        for values in (x, x.abs()):
            before = sum_of(values)
            TURNS[turn](values)
            assert sum_of(values) != before, count


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str, dtype: torch.dtype) -> None:
    x = torch.randn(24, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    before, bits = sum_of(x), x.view(torch.uint8).clone()
    CHANGES[change](x.data)
    assert sum_of(x) != before
    x.view(torch.uint8).copy_(bits)
    assert sum_of(x) == before


@pytest.mark.parametrize("words", [1, 2, 4095, 4097, 4096 * 33])
def test_every_bit_counts(words: int) -> None:
    x = torch.zeros(words, dtype=torch.int64)
    before = sum_of(x)
    for word in {0, words // 2, words - 1}:
        for bit in range(64):
            x[word] ^= 1 << bit if bit < 63 else -(1 << 63)
            assert sum_of(x) != before, (word, bit)
            x[word] = 0
