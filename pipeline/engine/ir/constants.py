"""Values that depend on the weights alone (summed kernels, summed biases): computed once for as long as those stay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.program import Op, Program

__all__ = ["bytes_from_weights", "from_weights", "made_of_weights"]


@torch.no_grad()
def from_weights(program: Program, weights: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Values, by op id, of the ops that depend on weights and constants only."""
    have: dict[int, Tensor] = {i: weights[name] for i, name in program.params.items()}

    def read(id_: int, _lo: int | None = None, _hi: int | None = None) -> Tensor:
        return have[id_]

    found = made_of_weights(program)
    for op in found:
        have[op.id] = op.run(read, 0, 0)
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
