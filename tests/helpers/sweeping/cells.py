"""Cells: what is called, with what, in which order. One seed gives one list, and a longer one begins with a shorter.

Cells come in groups of one family, which share one model in one process: a new size at every call, long and short clips
in turn, encode then decode, the same shapes again, or all of that at random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sweeping.families import Swept
from tvae.pipeline.models.calls import SIDES, Side
from tvae.pipeline.session.runner import RECORDED_AT

__all__ = ["LARGE", "Cell", "Scale", "cells_of"]

LARGE = 1 << 31
"""Elements of a map beyond which libraries count otherwise."""
_RATIOS = (1.0, 1.0, 16 / 9, 9 / 16, 4 / 3, 3 / 4)
_NAMED = ((1280, 720), (720, 1280), (832, 480), (480, 832), (1024, 1024), (512, 512), (768, 1344))
_PLAIN = (2, 3, 4, 6, 8, 12, 16, 24)
"""GiB."""
_TYPES = {"bfloat16": 6.0, "float16": 2.0, "float32": 2.0}
_ORDERS = {"sizes": 2.0, "lengths": 2.0, "sides": 2.0, "repeats": 2.0, "random": 3.0}


@dataclass(frozen=True)
class Cell:
    """One input of one side, and how it is called.

    height, width: of the pixels. frames: None for a picture. budget: None, ``least*1.3`` (of what a refusal names), or
    an amount such as ``6GiB``. fresh: by a new ``TiledVAE`` over the same model. plan_first: ``plan`` is asked before
    the call, and not after it. calls: how often it is called.
    """

    seed: int
    index: int
    group: int
    order: str
    family: str
    side: Side
    height: int
    width: int
    frames: int | None
    batch: int
    dtype: str
    budget: str | None
    fresh: bool
    plan_first: bool
    calls: int

    @property
    def pixels(self) -> int:
        """Of all frames and samples."""
        return self.height * self.width * (self.frames or 1) * self.batch

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def __str__(self) -> str:
        frames = "" if self.frames is None else f"x{self.frames}"
        batch = "" if self.batch == 1 else f" batch {self.batch}"
        budget = "" if self.budget is None else f" in {self.budget}"
        return f"{self.family} {self.side} {self.width}x{self.height}{frames}{batch} {self.dtype}{budget}"


@dataclass(frozen=True)
class Scale:
    """Work of a cell's untiled call: drawn between the first two; ``large`` now and then, ``huge`` for sizes that are
    named or that make maps of more than 2^31 elements. In TFLOP, of tiny models in millions of pixels. narrower:
    float32 is judged in float64, and gets so much less work. longest: pixels of a height or a width. plain: are there
    budgets of plain amounts?"""

    least: float
    most: float
    large: float
    huge: float
    narrower: float = 4.0
    longest: int = 8192
    plain: bool = True


def cells_of(seed: int, families: Sequence[Swept], scale: Scale) -> Iterator[Cell]:
    """Without end. Families come in rounds, in each at least once and as often as they weigh."""
    index = group = 0
    rounds = random.Random(f"{seed}")
    while True:
        each = [of for of in families for _ in range(max(1, int(of.weight)))]
        rounds.shuffle(each)
        for of in each:
            for cell in _Group(seed, group, of, scale).cells():
                yield replace(cell, index=index)
                index += 1
            group += 1


class _Group:
    """Draws from a generator of its own. Few lengths and batches, as each may have to be captured anew."""

    def __init__(self, seed: int, number: int, of: Swept, scale: Scale) -> None:
        self._random = random.Random(f"{seed}/{number}")
        self._seed, self._number, self._of, self._scale = seed, number, of, scale
        self._order = self._drawn(_ORDERS)
        if self._order == "lengths" and len(self._of.lengths) == 1:
            self._order = "sizes"
        lengths = self._of.lengths
        self._lengths = sorted(self._random.sample(lengths, min(2, len(lengths))), key=lambda n: n or 0)
        self._batches = (1, self._drawn_batch())
        self._dtype = self._drawn_type()

    def cells(self) -> Iterator[Cell]:
        """5 to 9 of them."""
        count = self._random.randint(5, 9)
        for shape in self._shapes(count):
            draw = self._random.random
            yield Cell(
                seed=self._seed,
                index=0,
                group=self._number,
                order=self._order,
                family=self._of.name,
                **shape,
                budget=self._budget(),
                fresh=draw() < 0.15,
                plan_first=draw() < 0.25,
                calls=self._random.choices((1, 2, RECORDED_AT), (2, 4, 3))[0],
            )

    def _shapes(self, count: int) -> Iterator[dict[str, Any]]:
        """Side, size, length, batch and type, in the order of this group."""
        side = self._random.choice(SIDES)
        if self._order == "sizes":
            frames, batch = self._length(), self._batch()
            yield from (self._shape(side, frames, batch) for _ in range(count))
        elif self._order == "lengths":
            long = self._shape(side, self._lengths[-1], 1)
            short = {**long, "frames": self._lengths[0]}
            yield from ((long, short)[n % 2] for n in range(count))
        elif self._order == "sides":
            frames, batch = self._length(), self._batch()
            for n in range(0, count, 2):
                shape = self._shape("decode", frames, batch)
                yield from ({**shape, "side": each} for each in SIDES[: count - n])
        elif self._order == "repeats":
            two = [self._shape(side, self._length(), self._batch()) for _ in range(2)]
            yield from (two[0] if n < 2 else self._random.choice(two) for n in range(count))
        else:
            for _ in range(count):
                if self._random.random() < 0.15:
                    self._dtype = self._drawn_type()
                yield self._shape(self._random.choice(SIDES), self._length(), self._batch())

    def _shape(self, side: Side, frames: int | None, batch: int) -> dict[str, Any]:
        batch = 1 if self._of.in_batch else batch
        height, width, frames, batch = self._sized(side, frames, batch)
        found = {"side": side, "height": height, "width": width, "frames": frames, "batch": batch}
        return {**found, "dtype": self._dtype}

    def _sized(self, side: Side, frames: int | None, batch: int) -> tuple[int, int, int | None, int]:
        of, scale, cost = self._of, self._scale, self._of.cost(side)
        draw = self._random.random()
        if frames is not None and draw < 0.12:  # short clips of full size
            short = self._random.choice([n for n in of.lengths if n is not None and n <= 17])
            if self._work(cost.work, 1280 * 720, short, 1) <= scale.huge:
                return *self._whole(720, 1280), short, 1
        if frames is None and 0.12 <= draw < 0.22:
            pixels = LARGE / cost.widest * self._random.uniform(1.02, 1.4)
            if self._work(cost.work, pixels, None, 1) <= scale.huge:
                return *self._fitted(math.sqrt(pixels), math.sqrt(pixels)), None, 1
        if 0.22 <= draw < 0.4:
            width, height = self._random.choice(_NAMED)
            if self._work(cost.work, width * height, frames, batch) <= scale.large:
                return *self._whole(height, width), frames, batch
        most = scale.large if draw > 0.95 else scale.most
        work = math.exp(self._random.uniform(math.log(scale.least), math.log(most)))
        pixels = work / self._work(cost.work, 1, frames, batch)
        ratio = self._ratio()
        return *self._fitted(math.sqrt(pixels / ratio), math.sqrt(pixels * ratio)), frames, batch

    def _work(self, per_million: float, pixels: float, frames: int | None, batch: int) -> float:
        """Of one call; more for float32, which is judged in float64."""
        times = self._scale.narrower if self._dtype == "float32" else 1.0
        return per_million * times * pixels * (frames or 1) * batch / 1e6

    def _fitted(self, height: float, width: float) -> tuple[int, int]:
        """The nearest size of whole latents, two at least; odd numbers of them more often than not."""
        found = []
        for length in self._whole(height, width):
            odd = length + (1 - length // self._of.geometry.spatial % 2) * self._of.geometry.spatial
            found.append(odd if self._random.random() < 0.6 and odd <= 1.3 * length else length)
        return found[0], found[1]

    def _whole(self, height: float, width: float) -> tuple[int, int]:
        step = self._of.geometry.spatial
        rows, columns = (max(2, round(min(length, self._scale.longest) / step)) for length in (height, width))
        return rows * step, columns * step

    def _ratio(self) -> float:
        kind = self._random.random()
        if kind < 0.6:
            return self._random.choice(_RATIOS)
        far = math.log(4.0 if kind < 0.85 else 40.0)
        return math.exp(self._random.uniform(-far, far))

    def _length(self) -> int | None:
        return self._random.choice(self._lengths)

    def _batch(self) -> int:
        return self._random.choice(self._batches)

    def _drawn_batch(self) -> int:
        if self._of.geometry.temporal is not None:
            return self._random.choices((1, 2), (7, 3))[0]
        return self._random.choices((1, 2, 3, 4, 8), (4, 3, 1, 1, 1))[0]

    def _budget(self) -> str | None:
        kind = self._random.random()
        if kind < 0.5:
            return None
        if kind < 0.62 and self._scale.plain:
            return f"{self._random.choice(_PLAIN)}GiB"
        factor = 1.0 if self._random.random() < 0.3 else self._random.uniform(1.0, 2.0)
        return f"least*{factor:.3f}"

    def _drawn_type(self) -> str:
        return self._drawn({name: weight for name, weight in _TYPES.items() if name in self._of.types})

    def _drawn(self, weights: dict[str, float]) -> str:
        return self._random.choices([*weights], [*weights.values()])[0]
