"""The equivalence check: how far a level's results are from the float64 oracle.

Errors are of the norm (relative L2) and of the worst value, so that one wrong pixel among millions shows. A level may
refuse a call (``Unsupported``); what it computes must be right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tvae.kernels.oracle import Case

__all__ = ["Deviation", "deviation"]


@dataclass(frozen=True)
class Deviation:
    """How far a result is from the oracle; None where a call gives no such thing."""

    error: float | None
    """Of values: ‖y - y*‖ / ‖y*‖."""
    worst: float | None
    """Of values: max |y - y*| / (|y*| + rms y*)."""
    statistics: float | None
    """Of statistics: the larger error of means (against the standard deviation) and of variances."""
    passed: bool


def deviation(case: Case, run: Callable[..., Any]) -> Deviation:
    """Calls ``run`` with the case's arguments and judges what comes back. Raises what it raises."""
    arguments = case.fresh()
    result = run(*arguments)
    values, parts = result if isinstance(result, tuple) else (result, None)
    if case.expected is None:
        values, parts = None, result
    error = worst = statistics = None
    passed = True
    if case.expected is not None:
        error, worst = _errors(values, case.expected)
        lost = case.out is not None and values.data_ptr() != arguments[case.out].data_ptr()
        error = float("inf") if lost else error
        passed = error <= case.tolerance and worst <= case.worst_tolerance
    if case.pixels is not None:
        statistics = float("inf") if parts is None else _statistics_error(parts, case.pixels)
        if values is not None and parts is not None:  # of the values as rounded is as good as before rounding
            statistics = min(statistics, _statistics_error(parts, values.double()))
        passed = passed and statistics <= case.statistics_tolerance
    return Deviation(error, worst, statistics, passed)


def _errors(values: Tensor, expected: Tensor) -> tuple[float, float]:
    """(relative L2, worst value) against the oracle; infinite for another shape or values that are not finite."""
    if values.shape != expected.shape:
        return float("inf"), float("inf")
    gap = (values.double() - expected).abs_()
    norm = float(expected.norm())
    error = float(gap.norm()) / norm
    worst = float((gap / (expected.abs() + norm / expected.numel() ** 0.5)).max())
    return (error, worst) if error < float("inf") and worst < float("inf") else (float("inf"), float("inf"))


def _statistics_error(parts: Tensor, pixels: Tensor) -> float:
    """Of parts_nb3c, merged over blocks, against a picture in float64; infinite where pixels are lost or doubled."""
    n, c = pixels.shape[:2]
    if parts.ndim != 4 or (parts.shape[0], *parts.shape[2:]) != (n, 3, c):
        return float("inf")
    flat = pixels.reshape(n, c, -1)
    count, mean, m2 = parts.double().unbind(2)
    total = count.sum(1)
    merged = (count * mean).sum(1) / total
    var = (m2.sum(1) + (count * (mean - merged.unsqueeze(1)).square()).sum(1)) / total
    true_mean, true_var = flat.mean(2), flat.var(2, correction=0)
    of_mean = float((merged - true_mean).norm() / true_var.sqrt().norm())
    of_var = float((var - true_var).norm() / true_var.norm())
    right = bool((total == flat.shape[2]).all()) and of_mean < float("inf") and of_var < float("inf")
    return max(of_mean, of_var) if right else float("inf")
