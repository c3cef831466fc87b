"""How a model is called: its two sides, what one is given beside its first input, where a clip's frames are, steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor, nn

__all__ = ["SIDES", "Call", "Frames", "Side", "Step"]

Side = Literal["encode", "decode"]
SIDES: tuple[Side, ...] = get_args(Side)

Step = Callable[[nn.Module, Tensor, Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]]
"""(model, chunk of a clip, caches) -> (its result, the next chunk's caches)."""


@dataclass(frozen=True)
class Call:
    """How the side is called: names of the tensor arguments after the first, and the other arguments by name. Of
    containers, which have slots for their tensors (``nested.Nested``), those are named by their place: ``scale[0]``.

    last: a step of a clip that no step follows. Its caches are not computed; the graph is that of every step.
    """

    tensors: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    last: bool = False


@dataclass(frozen=True)
class Frames:
    """Where a clip's frames are in the first input: its dimension, and the option of the call that counts them.

    alone: no norm and no attention needs the whole clip. Strips of time then need no buffer; they are quicker, too (LTX
    decode, 241 frames 1280x704 on an H200: 0.40 s by frames, 1.07 s by height).
    """

    dim: int = 2
    option: str | None = None
    alone: bool = False

    def serves(self, shape: Sequence[int], call: Call) -> bool:
        """Is this the shape of one clip, of several frames?"""
        frames = shape[self.dim]
        counted = frames if self.option is None else dict(call.options).get(self.option, frames)
        return frames > 1 and counted == frames
