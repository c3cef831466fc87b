"""Checksums of weights in the host's memory, in one pass at nearly the memory's speed.

The definition in ``checksum`` mixes every word by itself, which a GPU does beside reading and a CPU does not. Here
words are multiplied by random odd numbers and added up modulo 2^64, row by row (NumPy's integer products), and the
rows' sums once more. Products carry changes up and never down: two signs at the top of their words that turn would
undo each other, whatever the factors. So the upper half of each word is folded onto the lower one first, by a step
that is no element's width. A write goes unseen by a chance of 2^-32 at most. It reads 100 MB in some 16 ms on one core.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tvae.kernels.checksum import bytes_of

__all__ = ["HostChecksums"]

_ROW = 4096
"""Words."""
_ROWS_AT_ONCE = 32
"""As many as lie in a core's cache."""
_FOLD = np.uint64(31)
"""Bits."""
_FACTORS = np.random.default_rng(0).integers(-(2**63), 2**63, _ROW, dtype=np.int64) | 1


class HostChecksums:
    """One sum for each of some CPU tensors, as often as asked for; of the memory that they have when it is made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._bytes = [bytes_of(t) for t in tensors]

    def __call__(self) -> Tensor:
        """[tensors] int64."""
        sums = [_sum_of(b.reshape(-1).numpy(), n) for n, b in enumerate(self._bytes)]
        return torch.tensor(sums, dtype=torch.int64, device="cpu")


def _sum_of(data: np.ndarray, number: int) -> int:
    """Of a tensor's bytes."""
    whole = len(data) // 8 * 8
    rest = np.zeros(8, np.uint8)
    rest[: len(data) - whole] = data[whole:]
    words = data[:whole]
    words = (words if words.ctypes.data % 8 == 0 else words.copy()).view(np.int64)
    rows = _sums_of_rows(words[: len(words) // _ROW * _ROW].reshape(-1, _ROW))
    tail = np.concatenate([words[len(rows) * _ROW :], rest.view(np.int64)])
    sums = np.concatenate([rows, _folded(tail), [len(data), number]])
    keys = np.resize(_FACTORS, len(sums)) * (2 * np.arange(len(sums), dtype=np.int64) + 1)
    return int(sums @ keys)


def _sums_of_rows(words: np.ndarray) -> np.ndarray:
    """[rows, words] to [rows]."""
    sums, room = np.empty(len(words), np.int64), np.empty((min(len(words), _ROWS_AT_ONCE), _ROW), np.int64)
    for first in range(0, len(words), _ROWS_AT_ONCE):
        some = words[first : first + _ROWS_AT_ONCE]
        np.matmul(_folded(some, room[: len(some)]), _FACTORS, out=sums[first : first + len(some)])
    return sums


def _folded(words: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Other words for other words; what differs at the top differs further down, too."""
    out = np.empty(words.shape, np.int64) if out is None else out
    np.right_shift(words.view(np.uint64), _FOLD, out=out.view(np.uint64))
    return np.bitwise_xor(out, words, out=out)
