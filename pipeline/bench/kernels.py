"""Every operation at every level: its error, its time, and how near it comes to what the device can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from tvae.kernels import LEVELS, OPERATIONS, Unsupported, implementation, why_missing
from tvae.kernels.cases import measured_case, small_cases
from tvae.kernels.check import Deviation, deviation
from tvae.kernels.operations import operation_of
from tvae.kernels.oracle import Case
from tvae.pipeline.bench.timing import copy_rate, free_memory, is_out_of_memory, matrix_rate, queued_seconds, recorded
from tvae.pipeline.device import backend_settings
from tvae.pipeline.errors import UsageError
from tvae.presets import Preset

__all__ = ["Ceiling", "KernelRow", "bench_kernels", "default_size"]

Status = Literal["ok", "missing", "refused", "wrong", "failed"]


@dataclass(frozen=True)
class Ceiling:
    """What the device gives at best. copy: bytes a second, read plus written; matrix: operations a second."""

    kind: Literal["copy", "matrix"]
    rate: float

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "unit": "B/s" if self.kind == "copy" else "FLOP/s"}


@dataclass(frozen=True)
class KernelRow:
    """One operation at one level.

    status: ``missing`` (no such implementation here), ``refused`` (not for the measured call), ``wrong`` (beyond its
    tolerance), ``failed`` (it raised). error, worst, statistics: the largest of all calls that were checked, see
    ``kernels.check``; None where a level gives no such thing. seconds: on a GPU as runs make the call, replayed from a
    CUDA graph, where it can be recorded; launched_seconds: started by the host each time. share: of the ceiling.
    refused: small calls that this level leaves to the next, with its reason. chosen: the preset's level.
    """

    operation: str
    level: str
    status: Status
    chosen: bool = False
    reason: str | None = None
    error: float | None = None
    worst: float | None = None
    statistics: float | None = None
    tolerance: float | None = None
    seconds: float | None = None
    launched_seconds: float | None = None
    rate: float | None = None
    share: float | None = None
    checked: int = 0
    refused: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able: an infinite error (a wrong shape, a value that is not finite) is None."""
        finite = {k: None if v in (float("inf"), float("-inf")) else v for k, v in asdict(self).items()}
        return {**finite, "refused": list(self.refused)}


def default_size(device: torch.device) -> int:
    """Side of the measured picture: the oracle takes some forty bytes for each of its values."""
    if device.type != "cuda":
        return 128
    return 1024 if torch.cuda.mem_get_info(device)[0] > 24 * 2**30 else 512


def bench_kernels(
    preset: Preset,
    device: torch.device,
    dtype: torch.dtype,
    *,
    size: int,
    channels: int = 128,
    levels: Sequence[str] = LEVELS,
    operations: Sequence[str] = OPERATIONS,
    repeat: int = 20,
    quick: bool = False,
) -> Iterator[Ceiling | KernelRow]:
    """The ceilings, then a row for every operation and level, each as soon as it is known.

    ``quick`` checks only the call that is measured. Raises UsageError where the device cannot do it at all.
    """
    with torch.no_grad(), backend_settings(preset, dtype, device=torch.device(device)):
        try:
            torch.ones(1, device=device, dtype=torch.float64)
        except (TypeError, RuntimeError) as error:
            raise UsageError(f"kernels are checked in float64, which '{device}' lacks") from error
        ceilings = {"copy": copy_rate(device, repeat=repeat)}
        yield Ceiling("copy", ceilings["copy"])
        for operation in operations:
            try:
                measured = measured_case(operation, dtype, device, size, channels)
                small = [] if quick else small_cases(operation, dtype, device)
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    raise UsageError(f"not enough memory to check {operation}: give a smaller --size") from error
                raise
            if measured.flops and "matrix" not in ceilings:
                ceilings["matrix"] = matrix_rate(device, dtype, repeat=repeat)
                yield Ceiling("matrix", ceilings["matrix"])
            ceiling = ceilings["matrix" if measured.flops else "copy"]
            for level in levels:
                chosen = preset.levels.get(operation, preset.levels["default"]) == level
                yield _row(operation, level, chosen, measured, small, ceiling, device, repeat)
            del measured, small
            free_memory(device)


def _row(
    operation: str,
    level: str,
    chosen: bool,
    measured: Case,
    small: Sequence[Case],
    ceiling: float,
    device: torch.device,
    repeat: int,
) -> KernelRow:
    run = implementation(operation, level)
    if run is None:
        reason = why_missing(level, operation) or operation_of(operation).left_out.get(level, "there is none")
        return KernelRow(operation, level, "missing", chosen, reason)
    try:
        first = deviation(measured, run)
        found, refused = _check_small(run, small)
        deviations = [first, *found]
        of_values = _largest(d.error for d in deviations)
        status: Status = "ok" if all(d.passed for d in deviations) else "wrong"
        arguments = measured.fresh()
        launched = queued_seconds(lambda: run(*arguments), device, repeat=repeat)
        replay = recorded(lambda: run(*arguments), device)
        seconds = launched if replay is None else queued_seconds(replay, device, repeat=repeat)
    except Unsupported as reason:
        return KernelRow(operation, level, "refused", chosen, _line(reason))
    except Exception as error:  # a level that breaks is what the check is there to show; the others go on
        if is_out_of_memory(error):
            free_memory(device)
            return KernelRow(operation, level, "refused", chosen, "out of memory")
        return KernelRow(operation, level, "failed", chosen, _line(error))
    rate = (measured.flops or measured.moved) / seconds
    return KernelRow(
        operation,
        level,
        status,
        chosen,
        error=of_values,
        worst=_largest(d.worst for d in deviations),
        statistics=_largest(d.statistics for d in deviations),
        tolerance=measured.statistics_tolerance if of_values is None else measured.tolerance,
        seconds=seconds,
        launched_seconds=launched,
        rate=rate,
        share=rate / ceiling,
        checked=len(deviations),
        refused=refused,
    )


def _check_small(run: Callable[..., Any], cases: Sequence[Case]) -> tuple[list[Deviation], tuple[str, ...]]:
    """Deviations of the calls a level takes, and what it says of those it refuses."""
    found, refused = [], []
    for case in cases:
        try:
            found.append(deviation(case, run))
        except Unsupported as reason:
            refused.append(f"{case.label}: {_line(reason)}")
    return found, tuple(refused)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    kind = "" if isinstance(error, Unsupported) else f"{type(error).__name__}: "
    return f"{kind}{lines[0] if lines else 'no reason given'}"
