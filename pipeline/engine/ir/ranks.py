"""Which rows of the input each of several devices owns: one run of a program that they share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ranks", "even"]


@dataclass(frozen=True)
class Ranks:
    """Bands of the input's rows, one a rank, from top to bottom, and which of them is this process's.

    bands: ranges [lo, hi) that follow one another; none is empty.
    """

    bands: tuple[tuple[int, int], ...]
    rank: int

    @property
    def own(self) -> tuple[int, int]:
        """This rank's rows of the input."""
        return self.bands[self.rank]

    @property
    def widest(self) -> int:
        """The rank that has most to hold: of those with the most rows one between two others, where there is one."""
        between = range(1, len(self.bands) - 1)
        rows = [hi - lo for lo, hi in self.bands]
        return max(range(len(rows)), key=lambda rank: (rows[rank], rank in between, -rank))


def even(rows: int, unit: int, ranks: int, shares: Sequence[float] = ()) -> tuple[tuple[int, int], ...]:
    """Bands of ``rows`` rows for at most ``ranks`` ranks, each a multiple of ``unit`` rows but for the last.

    shares: of the rows, by rank, in proportion; even where there are none. There are fewer bands than ranks where there
    are fewer units: every band has one.
    """
    units = max(1, rows // unit)
    count = min(ranks, units)
    wanted = [*(shares[:count] if shares else [1.0] * count)]
    ends, passed = [0], 0.0
    for n, share in enumerate(wanted, 1):
        passed += share
        end = round(units * passed / sum(wanted))
        ends.append(min(max(end, ends[-1] + 1), units - (count - n)))
    edges = [unit * end for end in ends[:-1]] + [rows]
    return tuple(itertools.pairwise(edges))
