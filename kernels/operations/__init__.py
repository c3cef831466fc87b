"""The fused operations. A file here is an operation, and is found by being here: ``norm_act.py`` is ``norm_act``.

Each has the definition, a function of the file's name; ``case``, which makes a call of it together with what it must
give, by a formula in float64 that shares no code with the definition; and ``OPERATION``, which is all that the rest of
the program reads. Nothing in this module imports torch: presets name operations, and are shown without it.

Legend: x_nc* is [N, C, *spatial] in any memory layout; parts_nb3c are statistics of B disjoint blocks of pixels, for
every channel (count, mean, sum of squared deviations), float64; affine_2nc is (scale, shift) per channel; act is None
or "silu".
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvae.kernels.operation import Operation

__all__ = ["OPERATIONS", "operation_of"]

OPERATIONS = tuple(sorted(info.name for info in iter_modules(__path__)))
"""Their names."""


def operation_of(name: str) -> Operation:
    """All that is known of the operation of this name. ValueError for an unknown one."""
    if name not in OPERATIONS:
        raise ValueError(f"unknown operation '{name}'; one of {', '.join(OPERATIONS)}")
    found: Operation = import_module(f"{__name__}.{name}").OPERATION
    return found
