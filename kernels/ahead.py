"""Kernels that a model will want, built side by side while the model is captured.

A kernel is built when it is first called: 27 of them for SDXL's decoder, one after the other, where four fifths of the
time are compilers' that other threads need not wait for. So the operations are called in threads, on a few pixels of as
many channels as the model's norms have; what that builds is what the run asks for (for SDXL's decoder: all of it). A
wrong guess costs the build, and one that is missing is built by the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from tvae.kernels.registry import Kernels

__all__ = ["Ahead", "small_calls"]

Named = Sequence[tuple[str, Sequence[int]]]
"""Names and shapes of a model's weights."""
Calls = Iterator[tuple[object, ...]]

_SIDE = 16
"""Pixels, each way: numbers that 16 divides have kernels of their own, and most pictures are such."""
_GROUPS = 32
_THREADS = 8
_PATIENCE = 60.0
"""Seconds that a run waits at most: it builds for itself what is missing then."""
_TOGETHER = (("group_stats", "add_stats", "conv_add"), ("conv_from_few",), ("conv_to_few",), ("wide_attention",))
"""Operations that share a kernel are one thread's; all others have a thread each."""

_log = logging.getLogger("tvae")


class Ahead:
    """What is being built for one side of one model."""

    def __init__(self) -> None:
        self._started = False
        self._building: list[Future[None]] = []

    def start(self, kernels: Kernels, side: str, weights: Named, dtype: torch.dtype, device: torch.device) -> None:
        """Begin, once; without a GPU, or in types that have no such kernels, there is nothing to build.

        weights: of the whole model, of which those count that ``side`` (encode, decode) has.
        """
        if self._started or device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
            return
        self._started = True
        other = {"encode": "decoder.", "decode": "encoder."}.get(side, "\0")
        own = [(name, shape) for name, shape in weights if not name.startswith(other)]
        calls = small_calls(own, dtype, device)
        alone = [(name,) for name in calls if not any(name in names for names in _TOGETHER)]
        pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="tvae-build")
        for names in (*reversed(_TOGETHER), *alone):  # what takes longest first
            runs = [(run, calls[name]) for name in names if name in calls and (run := kernels.built(name))]
            if runs:
                self._building.append(pool.submit(_build, runs, device))
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Until everything is built, or the patience ends."""
        wait(self._building, timeout=_PATIENCE)
        self._building.clear()


def _build(runs: Iterable[tuple[Callable[..., object], Callable[[], Calls]]], device: torch.device) -> None:
    """Make these calls; whatever fails here is told by the run itself, where it matters."""
    with torch.cuda.device(device), torch.no_grad():
        for run, calls in runs:
            try:
                for arguments in calls():
                    run(*arguments)
            except Exception as error:
                _log.debug("not built ahead: %s", error)


def small_calls(weights: Named, dtype: torch.dtype, device: torch.device) -> dict[str, Callable[[], Calls]]:
    """By operation, the arguments of the calls that build what a model with these weights asks for."""
    norms = {shape[0] for name, shape in weights if len(shape) == 1 and "norm" in name and shape[0] % _GROUPS == 0}
    channels = sorted(norms, reverse=True)
    heads = [shape[0] for name, shape in weights if name.endswith("to_q.weight") and 384 <= shape[0] <= 1024]
    kernels = [tuple(shape) for _, shape in weights if len(shape) == 4 and shape[2] == shape[3] and shape[2] % 2]
    few = [shape for shape in dict.fromkeys(kernels) if shape[1] * shape[2] ** 2 <= 64 and shape[0] in norms]
    to_few = [shape for shape in dict.fromkeys(kernels) if shape[0] * shape[2] ** 2 <= 64 and shape[1] in norms]

    def picture(c: int, side: int = _SIDE) -> Tensor:
        return torch.zeros((1, side, side, c), dtype=dtype, device=device).movedim(-1, 1)

    def vector(c: int) -> Tensor:
        return torch.zeros(c, dtype=dtype, device=device)

    def affine(c: int) -> Tensor:
        return torch.zeros((2, 1, c), device=device)

    def pads(kernel: int) -> tuple[int, ...]:
        return (kernel // 2,) * 4

    def group_stats() -> Calls:
        yield from ((picture(c),) for c in channels)

    def add_stats() -> Calls:
        for c in channels:
            x = picture(c)
            yield x, picture(c), vector(c), x, True

    def finish_stats() -> Calls:
        blocks = 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        for c in channels:
            parts = torch.ones((1, blocks, 3, c), dtype=torch.float64, device=device)
            yield from ((parts, _GROUPS, 1e-6, vector(c), vector(c), offset) for offset in (None, vector(c)))

    def norm_act() -> Calls:
        yield from ((picture(c), affine(c), "silu") for c in channels)
        yield from ((picture(c), affine(c), None) for c in dict.fromkeys(heads))

    def interleave_stats() -> Calls:
        yield from ((picture(4 * c, _SIDE + 1), vector(c), None, True) for c in channels)

    def conv_add() -> Calls:
        for c in channels:
            weight = torch.zeros((c, 3, 3, c), dtype=dtype, device=device).movedim(-1, 1)
            yield picture(c), weight, picture(c), vector(c), pads(3), None, True

    def conv_from_few() -> Calls:
        for out, inner, kernel, _ in few:
            weight = torch.zeros((out, inner, kernel, kernel), dtype=dtype, device=device)
            yield picture(inner), weight, vector(out), pads(kernel), None, True

    def conv_to_few() -> Calls:
        for out, inner, kernel, _ in to_few:
            weight = torch.zeros((out, inner, kernel, kernel), dtype=dtype, device=device)
            yield picture(inner), weight, vector(out), pads(kernel), affine(inner), "silu"

    def wide_attention() -> Calls:
        for c in dict.fromkeys(heads):
            q, k = (torch.zeros((1, 1, tokens, c), dtype=dtype, device=device) for tokens in (256, 4096))
            yield q, k, k, c**-0.5, False

    found = {"conv_from_few": conv_from_few, "conv_to_few": conv_to_few, "wide_attention": wide_attention}
    if channels:
        found |= {"group_stats": group_stats, "add_stats": add_stats, "norm_act": norm_act}
        found |= {"finish_stats": finish_stats, "conv_add": conv_add}
    if any("upsample" in name for name, _ in weights):
        found["interleave_stats"] = interleave_stats
    return found
