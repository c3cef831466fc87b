"""Which level computes an operation: the preset's choice, or the next one down where that cannot run.

A level is a module with ``IMPLEMENTATIONS`` (operation -> function with the signature of its definition in
``native.py``) and ``missing()`` (why it cannot run on this machine, or None); ``NEEDS`` has the same for operations
that need something else. An implementation raises ``Unsupported`` for inputs it does not take, before it has computed
anything; the next level down is asked then, and ``native`` takes everything. What is passed over is logged once for
each operation, level and reason; it never fails a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import triton_needs
from tvae.kernels.prebuild import asked

__all__ = ["LEVELS", "OPERATIONS", "Failed", "Kernels", "Unsupported", "implementation", "why_absent", "why_missing"]

LEVELS = ("native", "script", "compile", "triton", "cuda")
"""From the definition (PyTorch operations) to CUDA C++."""

OPERATIONS = (
    *("group_stats", "finish_stats", "norm_act", "add_stats"),
    *("rms_norm_act", "pad", "enlarge", "conv3d", "conv_add", "enlarge_conv", "conv_from_few", "conv_to_few"),
    *("wide_attention", "sample", "frames_to_tensor", "tensor_to_frames"),
)

_NEXT = {"cuda": "triton", "triton": "native", "compile": "native", "script": "native"}
_log = logging.getLogger("tvae")


class Unsupported(ValueError):
    """Raised by an implementation for inputs it does not take; the message says which and why."""


class Failed(Unsupported):
    """Raised where an implementation cannot be built on this machine: it is not asked again."""


@cache
def why_missing(level: str, operation: str | None = None) -> str | None:
    """Why a level, or one of its operations, cannot run on this machine, or None. ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"unknown kernel level '{level}'; one of {', '.join(LEVELS)}")
    try:
        module = import_module(f"tvae.kernels.{level}")
        needs = getattr(module, "NEEDS", {})
        if operation is not None and operation not in needs:
            return why_missing(level)
        found: str | None = module.missing() if operation is None else needs[operation]()
    except ImportError as error:
        return f"{error.name or error} is not installed"
    return found


def why_absent(level: str) -> str | None:
    """The same without starting Triton where all that it needs is in sight; it may fail to start then all the same."""
    return None if level == "triton" and triton_needs.all_there() else why_missing(level)


def implementation(operation: str, level: str) -> Callable[..., Any] | None:
    """A level's function for an operation; None where the level has none, or cannot run here."""
    if operation not in OPERATIONS:
        raise ValueError(f"unknown operation '{operation}'; one of {', '.join(OPERATIONS)}")
    if why_missing(level, operation):
        return None
    found: Callable[..., Any] | None = import_module(f"tvae.kernels.{level}").IMPLEMENTATIONS.get(operation)
    return found


def _prepare(level: str, operations: set[str], dtype: torch.dtype, device: int) -> None:
    here = {operation for operation in operations if why_missing(level, operation) is None}
    prepare = getattr(import_module(f"tvae.kernels.{level}"), "prepare", None) if here else None
    if prepare is not None:
        prepare(here, dtype, device)


class Kernels:
    """The operations, each at the level that a preset chose. See ``native.py`` for what they compute."""

    def __init__(self, levels: Mapping[str, str] | None = None) -> None:
        """levels: level by operation, ``default`` for those not named. ValueError for an unknown name."""
        given = dict(levels or {})
        default = given.pop("default", "native")
        for name, level in (*given.items(), ("default", default)):
            if name not in (*OPERATIONS, "default"):
                raise ValueError(f"unknown operation '{name}'; one of {', '.join(OPERATIONS)}")
            if level not in LEVELS:
                raise ValueError(f"unknown kernel level '{level}'; one of {', '.join(LEVELS)}")
        self.levels = {op: given.get(op, default) for op in OPERATIONS}
        self._chains: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
        self._told: set[tuple[str, str, str]] = set()

    @property
    def rehearsable(self) -> bool:
        """Is what these levels build for a model Triton's alone? Others build for the sizes that they are given."""
        levels = set(self.levels.values())
        return not levels.isdisjoint(("triton", "cuda")) and levels.isdisjoint(("script", "compile"))

    def sums(self, operation: str, outer: int, inner: int, kernel: int) -> bool:
        """Does the level of ``conv_add`` or ``enlarge_conv`` take the statistics of such a convolution's result
        (channels out, in, kernel) as it is made, so that it pays with nothing to add, too?"""
        level = self.levels[operation]
        if why_missing(level, operation):
            return False
        module = import_module(f"tvae.kernels.{level}")
        return hasattr(module, "sums") and bool(module.sums(outer, inner, kernel))

    def prepare(self, dtype: torch.dtype, device: int) -> None:
        """Load the levels side by side, and build what their operations have that is the same for every model and size
        on a CUDA device."""
        wanted: dict[str, set[str]] = {}
        for operation, chosen in self.levels.items():
            for level in (chosen, _NEXT.get(chosen, chosen)):
                wanted.setdefault(level, set()).add(operation)
        with ThreadPoolExecutor(len(wanted), thread_name_prefix="tvae-prepare") as pool:
            for done in [pool.submit(_prepare, *each, dtype, device) for each in wanted.items()]:
                done.result()

    def group_stats(self, x: Tensor) -> Tensor:
        """See ``native.group_stats``."""
        return self._run("group_stats", x)

    def finish_stats(
        self, parts: Tensor, groups: int, eps: float, weight: Tensor | None, bias: Tensor | None, offset: Tensor | None
    ) -> Tensor:
        """See ``native.finish_stats``."""
        return self._run("finish_stats", parts, groups, eps, weight, bias, offset)

    def norm_act(self, x: Tensor, affine: Tensor, act: str | None) -> Tensor:
        """See ``native.norm_act``."""
        return self._run("norm_act", x, affine, act)

    def add_stats(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        out: Tensor | None = None,
        stats: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``native.add_stats``."""
        return self._run("add_stats", x, residual, bias, out, stats)

    def rms_norm_act(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        form: str,
        act: str | None,
        offset: Tensor | None = None,
    ) -> Tensor:
        """See ``native.rms_norm_act``."""
        return self._run("rms_norm_act", x, weight, bias, eps, form, act, offset)

    def pad(
        self,
        x: Tensor,
        amounts: Sequence[int],
        mode: str,
        affine: Tensor | None = None,
        act: str | None = None,
    ) -> Tensor:
        """See ``native.pad``."""
        return self._run("pad", x, amounts, mode, affine, act)

    def enlarge(self, x: Tensor, factors: Sequence[int]) -> Tensor:
        """See ``native.enlarge``."""
        return self._run("enlarge", x, factors)

    def conv3d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        """See ``native.conv3d``."""
        return self._run("conv3d", x, weight, bias, stride, padding, dilation, groups)

    def conv_add(
        self,
        x: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        bias: Tensor | None,
        pads: Sequence[int],
        out: Tensor | None = None,
        stats: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``native.conv_add``."""
        return self._run("conv_add", x, weight, residual, bias, pads, out, stats)

    def enlarge_conv(
        self,
        x: Tensor,
        taps: Tensor,
        bias: Tensor | None,
        pads: Sequence[int],
        out: Tensor | None = None,
        stats: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``native.enlarge_conv``."""
        return self._run("enlarge_conv", x, taps, bias, pads, out, stats)

    def conv_from_few(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        pads: Sequence[int],
        out: Tensor | None = None,
        stats: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``native.conv_from_few``."""
        return self._run("conv_from_few", x, weight, bias, pads, out, stats)

    def conv_to_few(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        pads: Sequence[int],
        affine: Tensor | None = None,
        act: str | None = None,
    ) -> Tensor:
        """See ``native.conv_to_few``."""
        return self._run("conv_to_few", x, weight, bias, pads, affine, act)

    def wide_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
        """See ``native.wide_attention``."""
        return self._run("wide_attention", q, k, v, scale, causal)

    def sample(self, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """See ``native.sample``."""
        return self._run("sample", mean, std, noise)

    def frames_to_tensor(self, frames: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """See ``frames.frames_to_tensor``."""
        return self._run("frames_to_tensor", frames, dtype)

    def tensor_to_frames(self, pixels: Tensor, dtype: torch.dtype = torch.uint8) -> Tensor:
        """See ``frames.tensor_to_frames``."""
        return self._run("tensor_to_frames", pixels, dtype)

    def _run(self, operation: str, *args: Any) -> Any:
        if operation not in self._chains:
            self._chains[operation] = self._chain(operation)
        for level, run in self._chains[operation]:
            try:
                return run(*args)
            except Unsupported as reason:
                if asked() is None:  # what a rehearsal's small sizes lead to is nobody's concern
                    self._tell(operation, level, str(reason))
                if isinstance(reason, Failed):
                    left = [link for link in self._chains[operation] if link[0] != level]
                    self._chains[operation] = left
        raise AssertionError(f"the definition of {operation} refused its inputs")

    def _chain(self, operation: str) -> list[tuple[str, Callable[..., Any]]]:
        """The implementations to ask, in order."""
        chain: list[tuple[str, Callable[..., Any]]] = []
        level: str | None = self.levels[operation]
        while level is not None:
            missing = why_missing(level, operation)
            run = implementation(operation, level)
            if run is not None:
                chain.append((level, run))
            elif missing:
                self._tell(operation, level, missing)
            level = _NEXT.get(level)
        return chain

    def _tell(self, operation: str, level: str, reason: str) -> None:
        if (operation, level, reason) not in self._told:
            self._told.add((operation, level, reason))
            _log.info("%s: not at level %s (%s)", operation, level, reason)
