"""Checksums of weights: what sees every write, also those that count no version (``p.data.copy_``, NumPy).

A tensor's bytes, in the order in which they lie in memory, are words of 64 bits, the last one filled up with zeros. Its
sum is that of ``mixed(word ^ key)`` modulo 2^64, with keys ``mixed(number of the tensor + 1) + STEP * number of the
word``. These are exact integers: the same bytes give the same sum in any order of adding, on any device and at either
level, and other bytes give another one but for a chance of 2^-64. ``mixed`` is MurmurHash3's finalizer, a bijection:
where only one word changed, the sum did for certain.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvae.kernels.registry import Failed, why_missing

if TYPE_CHECKING:
    from tvae.kernels.triton.checksum import FusedSums

__all__ = ["FIRST", "SECOND", "SHIFT", "STEP", "WORD", "WeightChecksums", "bytes_of", "first_key"]

WORD = 8
"""Bytes."""
FIRST, SECOND, SHIFT = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 33
STEP = 0x9E3779B97F4A7C15
"""Between the keys of neighbouring words: 2^64 over the golden ratio."""
_CHUNK = 1 << 20
"""Bytes of a tensor that the definition takes at a time."""
_log = logging.getLogger("tvae")


class WeightChecksums:
    """One sum for each of some tensors on one device, as often as asked for. At level ``triton`` where that runs.

    It reads the memory that the tensors have when it is made, and keeps that memory alive: for tensors that moved
    (another ``data_ptr``) make another. Of a tensor with holes in its memory (every second column of a matrix) it keeps
    a copy, filled again for each sum.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Raises ValueError for tensors of several devices, and for one without memory that can be read."""
        devices = {t.device for t in tensors}
        if len(devices) > 1:
            raise ValueError(f"checksums of tensors on several devices: {', '.join(sorted(map(str, devices)))}")
        device = devices.pop() if devices else torch.device("cpu")
        self._copies: list[tuple[Tensor, Tensor]] = []
        with torch.inference_mode(False):  # else they could not be written to outside of it
            self._data = [self._flat(bytes_of(t)) for t in tensors]
            self._sums = torch.zeros(len(tensors), dtype=torch.int64, device=device)
        self._fused: FusedSums | None = None
        if device.type == "cuda" and why_missing("triton") is None:
            self._fused = import_module("tvae.kernels.triton.checksum").FusedSums(self._data)

    def __call__(self) -> Tensor:
        """[tensors] int64 on their device, of what they hold when the current stream comes to it.

        The same tensor every time: the next call writes over it. Nothing waits for the device. With Triton, calls after
        the first take no memory, and any of them may be recorded in a CUDA graph.
        """
        for copy, source in self._copies:
            copy.copy_(source)
        if self._fused is not None:
            try:
                self._fused(self._sums)
                return self._sums
            except Failed as reason:
                _log.info("checksums of weights: not at level triton (%s)", reason)
                self._fused = None
        for number, data in enumerate(self._data):
            self._sums[number] = _sum_of(data, number)
        return self._sums

    def also_on(self, stream: torch.cuda.Stream) -> None:
        """Calls come on this stream, too: when the object goes, its memory stays until they are done."""
        fused = [] if self._fused is None else self._fused.memory
        for own in (self._sums, *(copy for copy, _ in self._copies), *fused):
            own.record_stream(stream)

    def _flat(self, data: Tensor) -> Tensor:
        """The bytes as one run: where they lie, or a copy of them."""
        if data.ndim == 1:
            return data
        copy = torch.empty(data.shape, dtype=torch.uint8, device=data.device)
        self._copies.append((copy, data))
        return copy.view(-1)


def first_key(number: int) -> int:
    """That of a tensor's first word."""
    return int(_mixed(torch.tensor(number + 1, device="cpu")).item())


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _sum_of(data: Tensor, number: int) -> Tensor:
    """The definition, for one tensor's bytes in one run."""
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for first, words in _words(data):
        keys = torch.arange(first, first + len(words), device=data.device).mul_(_signed(STEP)).add_(first_key(number))
        total += _mixed(keys.bitwise_xor_(words)).sum()
    return total


def _words(data: Tensor) -> Iterator[tuple[int, Tensor]]:
    """A chunk's words and the number of the first, for all chunks."""
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK]
        if (len(chunk) | chunk.data_ptr() | int(chunk.storage_offset())) % WORD:
            whole = torch.zeros(-(-len(chunk) // WORD) * WORD, dtype=torch.uint8, device=data.device)
            whole[: len(chunk)] = chunk
            chunk = whole
        yield start // WORD, chunk.view(torch.int64)


def _mixed(words: Tensor) -> Tensor:
    """In place. Products are modulo 2^64."""
    for factor in (FIRST, SECOND):
        words.bitwise_xor_(_shifted(words)).mul_(_signed(factor))
    return words.bitwise_xor_(_shifted(words))


def _shifted(words: Tensor) -> Tensor:
    """To the right, with zeros from the left: ``>>`` repeats the sign."""
    return (words >> SHIFT).bitwise_and_((1 << 64 - SHIFT) - 1)


def bytes_of(t: Tensor) -> Tensor:
    """A view of the bytes that a tensor covers: [bytes] where they lie in one run, whatever its dimensions' order, else
    [..., bytes of an element]. What is repeated without memory of its own counts once."""
    if t.layout != torch.strided or t.is_meta:
        raise ValueError(f"no checksum of a tensor without memory that can be read ({t.layout}, {t.device})")
    item, storage = t.element_size(), t.untyped_storage()
    dims = [(n, stride) for n, stride in zip(t.shape, t.stride(), strict=True) if n > 1 and stride]
    dims.sort(key=lambda dim: dim[1], reverse=True)
    run, last, dense = 1, 1, True
    for n, stride in reversed(dims):
        dense &= stride == run
        run, last = run * n, last + (n - 1) * stride
    start, shape, strides = t.storage_offset() * item, [run * item], [1]
    if t.numel() == 0:
        start, shape = 0, [0]
    elif start + last * item > storage.nbytes():
        raise ValueError(f"no checksum of a tensor whose memory was given back ({list(t.shape)}, {t.dtype})")
    elif not dense:
        shape, strides = [*(n for n, _ in dims), item], [*(stride * item for _, stride in dims), 1]
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(storage, start, shape, strides)
