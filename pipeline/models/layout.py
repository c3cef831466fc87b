"""How a file of weights names a VAE's tensors, and how its configuration is read off their shapes.

A family's file has a ``Layout`` for every program whose names people meet: diffusers' own, those of the research code,
ComfyUI's. A layout is data, so that a header alone tells what a file is, without building a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Kin", "Layout", "Shapes", "count", "module_names"]

Shapes = Mapping[str, tuple[int, ...]]
"""By the module's names."""

_FLIPPED = re.compile(r"~(\d+)")


@dataclass(frozen=True)
class Layout:
    """The names that one program gives to the tensors of one class.

    name: whose names they are. mark: a pattern that some name matches whole; where none does, the file is of another
    layout. configs: configurations that a module with such shapes may have, by the module's names; none where the
    shapes are no such module's. rules: patterns and what takes their place, applied to every name in turn. A number
    behind ``~`` counts from the other end. A name that ``|`` divides stands for several tensors, equal parts of the
    stored one along dimension 0. unused: patterns of names that the module does without.
    """

    name: str
    mark: str
    configs: Callable[[Shapes], Iterable[dict[str, Any]]]
    rules: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kin:
    """A public model, or several, with VAEs of one configuration: what shapes do not tell.

    key: the name that ``--vae-of`` takes. note: which models. layers: what its configuration says that shapes tell.
    constants: what it says beyond. beside: a pattern of a name elsewhere in a checkpoint that no other model has.
    architecture: a pattern of what the file's metadata call it, by ModelSpec.
    """

    key: str
    note: str
    layers: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    beside: str | None = None
    architecture: str | None = None

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration that was read off shapes may be this one's."""
        return all(_plain(config.get(name)) == _plain(value) for name, value in self.layers.items())


def module_names(layout: Layout, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By stored name: what the module calls it. Several names are equal parts; none, if the module does without."""
    renamed = {name: _renamed(layout, name) for name in names}
    last = max((int(m[1]) for new in renamed.values() for m in _FLIPPED.finditer(new)), default=0)
    flipped = {name: _FLIPPED.sub(lambda m: str(last - int(m[1])), new) for name, new in renamed.items()}
    return {name: tuple(filter(None, new.split("|"))) for name, new in flipped.items()}


def _renamed(layout: Layout, name: str) -> str:
    if any(re.fullmatch(pattern, name) for pattern in layout.unused):
        return ""
    for pattern, replacement in layout.rules:
        name = re.sub(pattern, replacement, name)
    return name


def count(shapes: Shapes, pattern: str) -> int:
    """How many numbers stand where the pattern has a group: of blocks, of layers."""
    found = (re.match(pattern, name) for name in shapes)
    return len({match[1] for match in found if match})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
