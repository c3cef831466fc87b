"""Which level computes an operation: the preset's choice, or the next one down where that cannot run.

A level is a module with ``IMPLEMENTATIONS`` (operation -> function with the parameters of its definition in
``operations``) and ``missing()`` (why it cannot run on this machine, or None); ``NEEDS`` has the same for operations
that need something else. An implementation raises ``Unsupported`` for inputs it does not take, before it has computed
anything; the next level down is asked then, and ``native`` takes everything. What is passed over is logged once for
each operation, level and reason; it never fails a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from tvae.kernels import triton_needs
from tvae.kernels.definitions import definitions_alone
from tvae.kernels.levels import LEVELS, check_levels
from tvae.kernels.operations import OPERATIONS, operation_of
from tvae.kernels.operations.add_stats import add_stats
from tvae.kernels.operations.conv3d import conv3d
from tvae.kernels.operations.conv_add import conv_add
from tvae.kernels.operations.conv_from_few import conv_from_few
from tvae.kernels.operations.conv_to_few import conv_to_few
from tvae.kernels.operations.down_conv import down_conv
from tvae.kernels.operations.enlarge import enlarge
from tvae.kernels.operations.enlarge_conv import enlarge_conv
from tvae.kernels.operations.finish_stats import finish_stats
from tvae.kernels.operations.frames_to_tensor import frames_to_tensor
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.operations.linear import linear
from tvae.kernels.operations.merge_stats import merge_stats
from tvae.kernels.operations.norm_act import norm_act
from tvae.kernels.operations.pad import pad
from tvae.kernels.operations.rms_norm_act import rms_norm_act
from tvae.kernels.operations.sample import sample
from tvae.kernels.operations.shuffle_up import shuffle_up
from tvae.kernels.operations.tensor_to_frames import tensor_to_frames
from tvae.kernels.operations.wide_attention import wide_attention
from tvae.kernels.prebuild import asked

__all__ = ["Failed", "Kernels", "Unsupported", "implementation", "why_absent", "why_missing"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

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
    """The same without starting Triton, if everything that it needs is found; it may still fail to start later."""
    return None if level == "triton" and triton_needs.all_there() else why_missing(level)


def implementation(operation: str, level: str) -> Callable[..., Any] | None:
    """A level's function for an operation; None where the level has none, or cannot run here."""
    operation_of(operation)
    if why_missing(level, operation):
        return None
    found: Callable[..., Any] | None = import_module(f"tvae.kernels.{level}").IMPLEMENTATIONS.get(operation)
    return found


def _prepare(level: str, operations: set[str], dtype: torch.dtype, device: int) -> None:
    here = {operation for operation in operations if why_missing(level, operation) is None}
    prepare = getattr(import_module(f"tvae.kernels.{level}"), "prepare", None) if here else None
    if prepare is not None:
        prepare(here, dtype, device)


def _method(definition: Callable[_P, _R]) -> Callable[Concatenate[Kernels, _P], _R]:
    """Runs an operation at its level. All levels get all arguments by position."""
    known, operation = signature(definition), definition.__name__
    defaults = tuple(parameter.default for parameter in known.parameters.values())
    needed = defaults.count(Parameter.empty)

    @wraps(definition)
    def run(self: Kernels, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        given: tuple[Any, ...] = args
        if kwargs or len(args) < needed:  # binding takes several microseconds
            bound = known.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.args
        elif len(args) < len(defaults):
            given = (*args, *defaults[len(args) :])
        chain = self._chains.get(operation) or self._chain(operation)
        for level, computed in chain[-1:] if definitions_alone() else chain:
            try:
                found: _R = computed(*given)
            except Unsupported as reason:
                self._refused(operation, level, reason)
            else:
                return found
        raise AssertionError(f"the definition of {operation} refused its inputs")

    return run


class Kernels:
    """The operations, each at the level that a preset chose. See ``operations`` for what they compute."""

    def __init__(self, levels: Mapping[str, str] | None = None) -> None:
        """levels: level by operation, ``default`` for those not named. ValueError for an unknown name."""
        given = dict(levels or {})
        check_levels(given)
        default = given.pop("default", "native")
        self.levels = {op: given.get(op, default) for op in OPERATIONS}
        self._chains: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
        self._told: set[tuple[str, str, str]] = set()

    @property
    def rehearsable(self) -> bool:
        """Is what these levels build for a model Triton's alone? Others build for the sizes that they are given."""
        levels = set(self.levels.values())
        return not levels.isdisjoint(("triton", "cuda")) and levels.isdisjoint(("script", "compile"))

    def sums(self, operation: str, outer: int, inner: int, kernel: int) -> bool:
        """Does the level of ``conv_add``, ``down_conv`` or ``enlarge_conv`` take the statistics of such a convolution's
        result (channels out, in, kernel) as it is made, so that it pays with nothing to add, too?"""
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

    # each with the parameters of its definition
    add_stats = _method(add_stats)
    conv3d = _method(conv3d)
    conv_add = _method(conv_add)
    conv_from_few = _method(conv_from_few)
    conv_to_few = _method(conv_to_few)
    down_conv = _method(down_conv)
    enlarge = _method(enlarge)
    enlarge_conv = _method(enlarge_conv)
    finish_stats = _method(finish_stats)
    frames_to_tensor = _method(frames_to_tensor)
    group_stats = _method(group_stats)
    linear = _method(linear)
    merge_stats = _method(merge_stats)
    norm_act = _method(norm_act)
    pad = _method(pad)
    rms_norm_act = _method(rms_norm_act)
    sample = _method(sample)
    shuffle_up = _method(shuffle_up)
    tensor_to_frames = _method(tensor_to_frames)
    wide_attention = _method(wide_attention)

    def _refused(self, operation: str, level: str, reason: Unsupported) -> None:
        if asked() is None:  # refusals at a rehearsal's small sizes are not logged
            self._tell(operation, level, str(reason))
        if isinstance(reason, Failed):
            self._chains[operation] = [link for link in self._chains[operation] if link[0] != level]

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
        self._chains[operation] = chain
        return chain

    def _tell(self, operation: str, level: str, reason: str) -> None:
        if (operation, level, reason) not in self._told:
            self._told.add((operation, level, reason))
            _log.info("%s: not at level %s (%s)", operation, level, reason)
