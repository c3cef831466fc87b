"""Heights of strips to choose from, in rows of a program's input. Limits name them in latent rows."""

from __future__ import annotations

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.raised import highest_of_all
from tvae.pipeline.memory.limits import Limits

__all__ = ["heights", "too_high", "unit_of_bands"]


def heights(program: Program, limits: Limits) -> list[int]:
    """The preferred one first: those that are low enough for the largest value."""
    found = _all(program, limits)
    if limits.fixed:
        return found
    most = highest_of_all(program)
    return [rows for rows in found if rows <= most] or [min(most, found[-1])]


def too_high(program: Program, limits: Limits) -> list[int]:
    """The others, which smaller values may have; the preferred one first."""
    most = highest_of_all(program)
    return [rows for rows in _all(program, limits) if rows > most]


def unit_of_bands(program: Program, limits: Limits) -> int:
    """Rows of the input that bands of ranks are multiples of."""
    return _of_latent(program, 1)


def _all(program: Program, limits: Limits) -> list[int]:
    return list(dict.fromkeys(_of_latent(program, rows) for rows in limits.strips()))


def _of_latent(program: Program, rows: int) -> int:
    """Rows of the input that so many latent rows are; the latent is the lower of input and output.

    Of a clip whose first frame stands apart: as many as a later latent frame has.
    """
    out = program.ops[program.outputs[0]].axis
    rows_out = out.rows if out else program.rows
    latent = max(1, min(rows_out, program.rows))
    if latent > 1 and program.rows % latent and (program.rows - 1) % (latent - 1) == 0:
        return rows * ((program.rows - 1) // (latent - 1))
    return -(-rows * program.rows // latent)
