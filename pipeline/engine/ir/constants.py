"""Values that depend on the weights alone (summed kernels, summed biases): computed once for as long as those stay."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tvae.pipeline.engine.ir.program import Op, Program

__all__ = ["bytes_from_weights", "from_weights", "made_of_weights"]


@torch.no_grad()
def from_weights(
    program: Program, weights: Mapping[str, Tensor], known: MutableMapping[Op, Tensor] | None = None
) -> dict[int, Tensor]:
    """Values of the ops that have weights, and nothing else but constants, behind them; by op id. They are kept, and so
    a caller's own mode that changes what operations compute has no part in them.

    known: those of other programs with these weights, which share such ops; new ones are added.
    """
    have: dict[int, Tensor] = {i: weights[name] for i, name in program.params.items()}
    known = {} if known is None else known

    def read(id_: int, _lo: int | None = None, _hi: int | None = None) -> Tensor:
        return have[id_]

    found = made_of_weights(program)
    with _disable_current_modes():
        for op in found:
            value = known.get(op)
            if value is None:
                value = known[op] = op.run(read, 0, 0)
            have[op.id] = value
    return {op.id: have[op.id] for op in found}


def bytes_from_weights(program: Program) -> int:
    """Of the values of ``from_weights``."""
    return sum(op.bytes for op in made_of_weights(program))


def made_of_weights(program: Program) -> list[Op]:
    """The ops whose values ``from_weights`` gives."""
    have, found = set(program.params), list[Op]()
    for op in program.ops:
        whole = op.axis is None and op.reduction is None and op.kind == "call" and bool(op.inputs)
        if whole and op.constant and have.issuperset(op.inputs):
            have.add(op.id)
            found.append(op)
    return found
