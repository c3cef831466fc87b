"""Of a file that is no VAE that tvae knows: which it is nearest to, and what differs, counted and named.

Marks, by which files are known in no time, do not count here: the tensor that is one may be what is missing. All
layouts are compared by names without their numbers, the nearest ones tensor by tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.models.calls import SIDES
from tvae.pipeline.models.candidates import Candidate, beside, named
from tvae.pipeline.models.expected_shapes import expected_shapes
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.families.family import Family
from tvae.pipeline.models.layout import Layout, module_names
from tvae.pipeline.models.one_side import other_side, part_of, side_of

__all__ = ["alike", "what_is_near"]

_LIKE = 0.5
"""Share of names in common, numbers aside, from which on a layout is worth being told of."""
_AS_LIKE = 0.1
"""Less in common than the nearest, and still worth it."""
_TOLD = 2
"""Candidates that are told of."""
_AS_NEAR = 4
"""Times as many faults as the nearest one has, and still worth being told of."""
_NAMED = 3
"""Tensors that are named of what is missing, and so on."""
_PARTS = 3
"""Of a stored tensor that is several of the module's, in most cases."""


def alike(tensors: Mapping[str, TensorSpec]) -> list[Candidate]:
    """Candidates of all layouts whose names the file has, as far as their configurations can be read off."""
    return [one for family, layout in _alike(tensors) for one in beside(family, layout, tensors)]


def what_is_near(tensors: Mapping[str, TensorSpec], candidates: Iterable[Candidate], prefix: str) -> str:
    """How the sentence goes on about a VAE that has these tensors. prefix: of all their names in the file."""
    different: dict[Any, Candidate] = {}
    for one in sorted(candidates, key=lambda one: one.faults):
        different.setdefault((one.family.class_name, *map(tuple, (one.missing, one.left, one.misshapen))), one)
    near = [*different.values()][:_TOLD]
    texts = [_told(one, tensors, prefix) for one in near if one.faults <= _AS_NEAR * near[0].faults]
    texts = texts or [_unread(family, layout, tensors, prefix) for family, layout in _alike(tensors)[:1]]
    if not texts:
        return f"is a file of no VAE that tvae knows: {_some(prefix + name for name in tensors)}"
    return f"is no VAE that tvae knows; nearest is {' | '.join(texts)}"


def _alike(tensors: Mapping[str, TensorSpec]) -> list[tuple[Family, Layout]]:
    """Layouts whose names the file has, most of all first."""
    scores: list[tuple[float, Family, Layout]] = []
    for family in FAMILIES.values():
        for layout in family.layouts:
            found = {_blind(name) for name in named(layout, tensors)[0]}
            score = max((_in_common(found, names) for names in _names(family, layout)), default=0.0)
            scores.append((score, family, layout))
    scores.sort(key=lambda one: -one[0])
    least = max(_LIKE, scores[0][0] - _AS_LIKE)
    return [(family, layout) for score, family, layout in scores if score >= least]


def _names(family: Family, layout: Layout) -> Iterator[set[str]]:
    """Of published configurations, and of each of their sides, without numbers."""
    configs = [*layout.configs({})] or [one.config for one in family.checkpoints.values()] or [{}]
    for config in configs:
        names = _BLIND.get(key := f"{family.class_name} {config}")
        if names is None:
            expected = expected_shapes(family.class_name, config, _UNBOUNDED) or {}
            names = _BLIND[key] = [
                {_blind(name) for name in expected if side is None or side_of(name) in (side, None)}
                for side in (None, *SIDES)
            ]
        yield from names


_BLIND: dict[str, list[set[str]]] = {}
"""By class and configuration: building all of them takes seconds."""
_UNBOUNDED = {"": TensorSpec("F32", (1 << 31,))}
"""Published configurations need no weights that justify them."""


def _in_common(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _blind(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _told(candidate: Candidate, tensors: Mapping[str, TensorSpec], prefix: str) -> str:
    """What differs, by names of the file. Several parts of one stored tensor are one."""
    asked = candidate.missing[: _PARTS * _NAMED]
    missing = [*dict.fromkeys(_stored_as(name, candidate, tensors) for name in asked)]
    differs = [
        f"{count} {what} ({', '.join(prefix + name for name in names[:_NAMED])}{', …' if count > _NAMED else ''})"
        for count, names, what in (
            (len(candidate.missing) - len(asked) + len(missing), missing, "missing"),
            (len(candidate.left), candidate.left, "left over"),
            (len(candidate.misshapen), candidate.misshapen, "misshapen"),
        )
        if count
    ]
    side = "" if candidate.absent is None else f"the {part_of(other_side(candidate.absent))} of "
    return f"{side}{candidate.family.class_name} in {candidate.layout.whose} names: {', '.join(differs)}"


def _stored_as(name: str, candidate: Candidate, tensors: Mapping[str, TensorSpec]) -> str:
    """What the file would call a tensor of the module: a name like those it has that the layout's rules make this one
    of. The module's own name where there is none."""
    near = sorted(candidate.pieces, key=lambda other: -_begin_alike(name, other))[:_LOOKED_AT]
    stored = [candidate.pieces[one].stored.split(".") for one in near]
    others: dict[int, set[str]] = {}
    """Parts of names by their place, counted from the beginning and from the end."""
    for split in (one.split(".") for one in tensors):
        for place, part in enumerate(split):
            others.setdefault(place, set()).add(part)
            others.setdefault(place - len(split), set()).add(part)
    tries = {
        ".".join([*split[:place], part, *split[place + 1 :]])
        for split in stored
        for place in range(len(split))
        for part in others[place] | others[place - len(split)]
    } - tensors.keys()
    named_so = module_names(candidate.layout, [*tensors, *sorted(tries)])
    return next((one for one in sorted(tries) if name in named_so[one]), name)


def _begin_alike(one: str, other: str) -> int:
    """For so many characters."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


_LOOKED_AT = 8
"""Names of tensors near one that is missing."""


class _Asked(dict[str, tuple[int, ...]]):
    """Shapes that note which of them were asked for in vain."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(shapes)
        self.vain: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        """As of any dictionary."""
        if name not in self and name not in self.vain:
            self.vain.append(name)
        return super().get(name, default)


def _unread(family: Family, layout: Layout, tensors: Mapping[str, TensorSpec], prefix: str) -> str:
    """Of a layout whose configuration cannot be read off these shapes."""
    shapes = _Asked({name: piece.shape for name, piece in named(layout, tensors)[0].items()})
    empty = not [*layout.configs(shapes)]
    what = f"{family.class_name} in {layout.whose} names"
    if empty and shapes.vain:
        pieces = named(layout, tensors)[0]
        candidate = Candidate(family, layout, {}, pieces, [], [], [], None)
        lacking = ", ".join(prefix + _stored_as(name, candidate, tensors) for name in shapes.vain[:_NAMED])
        return f"{what}, whose layers are read off tensors that are missing ({lacking})"
    return f"{what}, whose layers no such shapes have"


def _some(names: Iterable[str]) -> str:
    first, *more = sorted(names) or [""]
    return f"{1 + len(more)} tensor{'s' if more else ''}, such as '{first}'" if first else "it has no tensor"
