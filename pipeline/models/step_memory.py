"""What convolutions over time keep from one chunk of a clip to the next. Values are [N, C, T, H, W]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.errors import UsageError

__all__ = ["Caches", "Memory", "computing"]

Caches = tuple[Tensor, ...]
"""The frames that convolutions over time keep from step to step, in the order of computation."""


class Memory:
    """The frames that convolutions over time see before the first of this pass.

    given: for each such convolution, in the order of computation, its last input frames; empty at a clip's beginning,
    where copies of the first frame stand for them, or zeros. keep: gather in ``kept`` what the next pass is given.
    """

    def __init__(self, given: Sequence[Tensor] = (), *, keep: bool = False) -> None:
        self.begins = not given
        self._given, self._keep = iter(given), keep
        self.kept: list[Tensor] = []

    @classmethod
    def of_step(cls, given: Sequence[Tensor], wanted: int) -> Memory:
        """Of a step whose side has ``wanted`` such convolutions. ``UsageError`` for another number of caches."""
        if given and len(given) != wanted:
            raise UsageError(f"a step takes no caches or {wanted}, not {len(given)}")
        return cls(given, keep=True)

    def before(self, x: Tensor, window: int, stride: int = 1, *, zeros: bool = False) -> Tensor:
        """x with the frames before it, for a convolution of ``window`` frames: window - 1 copies (or zeros), or those
        kept."""
        if self.begins:
            first = x[:, :, :1].expand(-1, -1, window - 1, -1, -1)
            past = torch.zeros_like(first) if zeros else first
        else:
            past = next(self._given)
        x = torch.cat([past, x], dim=2)
        if self._keep:
            self.kept.append(x[:, :, stride - window :].clone())  # a view would keep the whole chunk in memory
        return x


@contextmanager
def computing(modules: Iterable[nn.Module], forward: Callable[..., Any]) -> Iterator[None]:
    """Within, each of these modules computes ``forward(module, ...)`` in the place of its own; restored afterwards."""
    changed = [(module, vars(module).get("forward")) for module in modules]
    try:
        for module, _ in changed:
            module.forward = partial(forward, module)
        yield
    finally:
        for module, before in changed:
            del module.forward
            if before is not None:
                module.forward = before
