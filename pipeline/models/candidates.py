"""A file's tensors beside what a layout and a configuration expect: where they lie, which are missing or left over.

Nothing is decided here. ``single_file`` takes a candidate without faults, ``nearest`` tells of those that have some.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.models.calls import SIDES, Side
from tvae.pipeline.models.expected_shapes import expected_shapes
from tvae.pipeline.models.families.family import Family
from tvae.pipeline.models.layout import Layout, Shapes, module_names
from tvae.pipeline.models.one_side import side_of

if TYPE_CHECKING:
    from torch import Tensor

    from tvae.pipeline.models.weights_file import WeightsFile

__all__ = ["Candidate", "Piece", "beside", "joined"]

_NO_SHAPE = (-1,)
"""Of parts of a tensor that cannot be divided so."""
_COUNTER = ".num_batches_tracked"
"""Of steps in training, which files may leave out."""


@dataclass(frozen=True)
class Piece:
    """Where a tensor of the module lies: part ``part`` of ``parts`` of a stored one, along dimension 0."""

    stored: str
    shape: tuple[int, ...]
    """Of the module's tensor; the stored one may have more or fewer ones at its end."""
    part: int = 0
    parts: int = 1
    file: int = 0
    """Which of the files of weights."""

    def read(self, file: WeightsFile) -> Tensor:
        """The module's tensor out of that file."""
        found = file.whole(self.stored) if self.parts == 1 else file.part(self.stored, self.part, self.parts)
        return found.reshape(self.shape)


@dataclass(frozen=True)
class Candidate:
    """A layout and a configuration beside a file.

    missing: names of the module's tensors, without those of the side that is not there at all. left, misshapen: names
    of stored tensors. absent: the side of whose tensors there is none.
    """

    family: Family
    layout: Layout
    config: dict[str, Any]
    pieces: dict[str, Piece]
    missing: list[str]
    left: list[str]
    misshapen: list[str]
    absent: Side | None

    @property
    def faults(self) -> int:
        """None: the file holds this model, or one side of it."""
        return len(self.missing) + len(self.left) + len(self.misshapen)


def beside(family: Family, layout: Layout, tensors: Mapping[str, TensorSpec]) -> Iterator[Candidate]:
    """A candidate for every configuration that the layout offers for these tensors."""
    found, twice = named(layout, tensors)
    for config in layout.configs({name: piece.shape for name, piece in found.items()}):
        candidate = _compared(family, layout, config, found, twice, tensors)
        if candidate is not None:
            yield candidate


def named(layout: Layout, tensors: Mapping[str, TensorSpec]) -> tuple[dict[str, Piece], list[str]]:
    """Where the tensors lie, by the module's names; and stored ones whose names are another's, too."""
    found: dict[str, Piece] = {}
    twice: list[str] = []
    for stored, names in module_names(layout, tensors).items():
        shape = tensors[stored].shape
        for part, name in enumerate(names):
            divides = len(names) == 1 or (shape and shape[0] % len(names) == 0)
            rows = (shape[0] // len(names), *shape[1:]) if shape and divides else shape if divides else _NO_SHAPE
            if name in found:
                twice.append(stored)
            found.setdefault(name, Piece(stored, rows, part, len(names)))
    return found, twice


def joined(one: Candidate, other: Candidate, same: Callable[[Collection[str]], bool]) -> Candidate | None:
    """Two candidates of a side each, from the first and the second of two files, as one model. None: they are none.
    same: whether tensors of these names, which both sides need and both files hold, have the same values in both."""
    if one.family is not other.family or {one.absent, other.absent} != {*SIDES}:
        return None
    second = {name: Piece(p.stored, p.shape, p.part, p.parts, 1) for name, p in other.pieces.items()}
    shared = one.pieces.keys() & second.keys()
    if any(one.pieces[name].shape != second[name].shape for name in shared) or not same(shared):
        return None  # which of the two would count, nobody says
    found = {**second, **one.pieces}
    shapes: Shapes = {name: piece.shape for name, piece in found.items()}
    tensors = {name: TensorSpec("", shape) for name, shape in shapes.items()}
    for layout in (one.layout, other.layout):
        for config in layout.configs(shapes):
            candidate = _compared(one.family, layout, config, found, [], tensors)
            if candidate is not None and not candidate.faults:
                return candidate
    return None


def _compared(
    family: Family,
    layout: Layout,
    config: dict[str, Any],
    found: Mapping[str, Piece],
    twice: list[str],
    tensors: Mapping[str, TensorSpec],
) -> Candidate | None:
    sides: set[Side | None] = {side_of(name) for name in found}
    expected = expected_shapes(family.class_name, config, tensors, halves=1 + (not sides.issuperset(SIDES)))
    if expected is None:
        return None
    pieces: dict[str, Piece] = {}
    missing: list[str] = []
    misshapen: list[str] = []
    for name, shape in expected.items():
        piece = found.get(name)
        if piece is None:
            missing += [] if name.endswith(_COUNTER) else [name]
        elif _bare(piece.shape) != _bare(shape):
            misshapen.append(piece.stored)
        else:
            pieces[name] = Piece(piece.stored, shape, piece.part, piece.parts, piece.file)
    absent = _absent([side for side in SIDES if side not in sides], expected)
    missing = [name for name in missing if absent is None or side_of(name) != absent]
    left = [*dict.fromkeys(twice + [piece.stored for name, piece in found.items() if name not in expected])]
    return Candidate(family, layout, config, pieces, missing, left, [*dict.fromkeys(misshapen)], absent)


def _absent(without: list[Side], expected: Mapping[str, Any]) -> Side | None:
    """The one side that the module has tensors of and the file has not."""
    wanted = [side for side in without if any(side_of(name) == side for name in expected)]
    return wanted[0] if len(wanted) == 1 else None


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones at its end: an attention's projections are stored as linear maps or as convolutions of one pixel."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape
