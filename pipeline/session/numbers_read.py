"""Models whose Python code reads weights of one number: ``if not self.initialised``, ``self.scale.item()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

from tvae.pipeline.engine.capture.scalar_weights import scalar_weights
from tvae.pipeline.errors import UnsupportedOp
from tvae.pipeline.session.identity.identity import Identity, identity_of

__all__ = ["NumbersRead", "numbers_covered"]

T = TypeVar("T")

_BY_VALUES = ("data-dependent", "depends on values")


class NumbersRead:
    """Whether a model does. Until a capture is refused that may be for that, no identity depends on such values: they
    change with every step of a training, and each change is another capture where they count."""

    def __init__(self) -> None:
        self.found = False

    def attempt(self, model: nn.Module, call: Callable[[], T]) -> T:
        """What the call gives. It is made a second time, with ``found`` set, where its capture was refused for values
        that may be those of such weights."""
        try:
            return call()
        except UnsupportedOp as error:
            if self.found or not any(words in error.why for words in _BY_VALUES) or not scalar_weights(model):
                raise
        self.found = True
        return call()

    def identity(self, model: nn.Module, known: Identity | None, release: Callable[[], None]) -> Identity:
        """Of the model as it is now. known: as it was. release: called where it is another."""
        if known is None or known.scalars != self.found or not known.unchanged():
            release()
            known = identity_of(model, scalars=self.found).evaluated()
        return known


def numbers_covered(model: nn.Module, covered: bool) -> dict[str, Tensor]:
    """Weights that graphs of an identity may depend on by value, by name. covered: those that there are, else none."""
    return scalar_weights(model) if covered else {}
