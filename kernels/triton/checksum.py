"""Checksums of all weights of a model in one launch: every program takes one block of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from tvae.kernels.checksum import FIRST, SECOND, SHIFT, STEP, WORD, first_key
from tvae.kernels.registry import Failed
from tvae.kernels.triton.launch import INTERPRETED, device_of, launch

__all__ = ["FusedSums", "Tuning"]


class Tuning(NamedTuple):
    """How memory is cut: what the measuring script sweeps."""

    words: int
    """Of a block, a power of two."""
    warps: int


TUNING = Tuning(words=2048, warps=4)

_FIRST, _SECOND, _SHIFT = tl.constexpr(FIRST), tl.constexpr(SECOND), tl.constexpr(SHIFT)
_STEP, _WORD = tl.constexpr(STEP), tl.constexpr(WORD)


@triton.jit
def _mixed(word: tl.tensor) -> tl.tensor:
    word = (word ^ (word >> _SHIFT)) * _FIRST
    word = (word ^ (word >> _SHIFT)) * _SECOND
    return word ^ (word >> _SHIFT)


@triton.jit
def _sums(table: tl.tensor, sums: tl.tensor, WORDS: tl.constexpr, PART: tl.constexpr) -> None:
    row = table + tl.program_id(0).to(tl.int64) * 4
    address, size = tl.load(row), tl.load(row + 1)
    number, key = tl.load(row + 2), tl.load(row + 3).to(tl.uint64, bitcast=True)
    if (address % 16 == 0) & (size == WORDS * _WORD):
        lane = tl.arange(0, WORDS)
        at = tl.multiple_of(address.to(tl.pointer_type(tl.int64), bitcast=True) + lane, 16)
        word = tl.load(at).to(tl.uint64, bitcast=True)
        total = tl.sum(_mixed(word ^ (lane.to(tl.uint64) * _STEP + key)), 0)
    else:  # a tensor's end, or a view that does not lie on words
        parts = tl.zeros([PART], tl.uint64)
        for first in range(0, size, PART * _WORD):
            place = first + tl.arange(0, PART) * _WORD
            byte = address.to(tl.pointer_type(tl.uint8), bitcast=True) + place
            word = (place // _WORD).to(tl.uint64) * _STEP + key
            for n in tl.static_range(_WORD):
                word ^= tl.load(byte + n, mask=place + n < size, other=0).to(tl.uint64) << (8 * n)
            parts += tl.where(place < size, _mixed(word), 0)
        total = tl.sum(parts, 0)
    tl.atomic_add(sums + number, total.to(tl.int64, bitcast=True), sem="relaxed")


class FusedSums:
    """The sums of ``checksum.WeightChecksums``, of bytes [n] on one device."""

    def __init__(self, data: Sequence[Tensor]) -> None:
        self._words, self._warps = TUNING
        with torch.inference_mode(False):
            # by NumPy: PyTorch would wake its threads, which are busy where other processes run
            rows = np.concatenate([np.empty((0, 4), np.int64), *(self._blocks(*each) for each in enumerate(data))])
            rows = rows[rows[:, 1].argsort(kind="stable")]  # what is read by bytes takes longest: it comes first
            table = torch.from_numpy(rows)
            self._table = table.to(data[0].device) if data else table
        self._grid = (len(rows),)
        self.memory = [self._table]
        """Of its own, on the device."""

    def __call__(self, sums: Tensor) -> None:
        """Write them, [tensors] int64. Raises Failed where Triton cannot build the kernel."""
        sums.zero_()
        if self._grid == (0,):
            return
        try:
            with device_of(sums):
                launch(
                    _sums,
                    self._grid,
                    self._table,
                    sums,
                    WORDS=self._words,
                    PART=32 * self._warps,
                    num_warps=self._warps,
                )
        except TritonError as error:
            if INTERPRETED:
                raise
            raise Failed(f"Triton cannot build it: {str(error).strip().splitlines()[0]}") from error

    def _blocks(self, number: int, data: Tensor) -> np.ndarray:
        """(address, bytes, number of the tensor, key of the first word) of each block of a tensor."""
        at = np.arange(0, len(data), self._words * WORD, dtype=np.int64)
        sizes = np.minimum(len(data) - at, self._words * WORD)
        keys = (at // WORD).view(np.uint64) * np.uint64(STEP) + np.array([first_key(number)]).view(np.uint64)
        return np.stack([data.data_ptr() + at, sizes, np.full_like(at, number), keys.view(np.int64)], 1)
