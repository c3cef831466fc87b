"""What VAE a safetensors file holds, alone or inside a checkpoint: known by names and shapes, from its header alone.

A file is a VAE that tvae knows where, under the names of one layout, every tensor of the module is there in its shape,
and no other. What shapes do not tell (the scale of model space) is taken from the rest of the checkpoint or from the
file's metadata where they name the model, and else stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import Header, TensorSpec
from tvae.pipeline.models.expected_shapes import expected_shapes
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.families.family import Family
from tvae.pipeline.models.layout import Kin, Layout, Shapes, module_names

__all__ = ["Found", "Piece", "recognise"]

PREFIXES = ("first_stage_model.", "vae.")
"""Of a VAE's tensors inside a checkpoint."""
ARCHITECTURE = "modelspec.architecture"
"""Where files that follow Stability AI's ModelSpec say what they are."""
_CAUTION = "force_upcast"
"""Says that float16 overflows: where any of several models says so, it is believed."""
_COUNTER = ".num_batches_tracked"
"""Of steps in training, which files may leave out."""
MOST_NAMES = 1 << 16
"""Of tensors; no VAE has a tenth of them."""


@dataclass(frozen=True)
class Piece:
    """Where a tensor of the module lies: part ``part`` of ``parts`` of a stored one, along dimension 0."""

    stored: str
    shape: tuple[int, ...]
    """Of the module's tensor; the stored one may have more or fewer ones at its end."""
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Found:
    """A VAE in a file. kin: what public models it may be of; the one, if that is known."""

    class_name: str
    config: dict[str, Any]
    pieces: dict[str, Piece]
    prefix: str
    layout: str
    kin: tuple[Kin, ...]
    why: str

    def describe(self) -> dict[str, Any]:
        """JSON-able: what it is and how that is known."""
        return {
            "layout": self.layout,
            "prefix": self.prefix,
            "of": ", ".join(one.note for one in self.kin) or None,
            "why": self.why,
            "unknown": self.space_unknown,
        }

    @property
    def space_unknown(self) -> str | None:
        """Why nothing is known of model space; None: it is known."""
        if len(self.kin) == 1 or not FAMILIES[self.class_name].kin:
            return None
        if not self.kin:
            return "no public VAE has such layers"
        names = _listed([f"{kin.note} ({kin.key})" for kin in self.kin], "and")
        return f"{names} have the same layers"


_STORED = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
"""Types of weights, by safetensors' names."""


def recognise(header: Header, where: Path, of: str | None = None, sha256: Callable[[], str] = str) -> Found:
    """The VAE in a file. of: the key of the public model that it is of, where the user said it. sha256: of the file,
    asked for only where nothing else tells.

    `UsageError` in one line: what the file lacks or has beyond the VAE that is nearest, or that it is none.
    """
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in header.tensors)), "")
    tensors = {name[len(prefix) :]: spec for name, spec in header.tensors.items() if name.startswith(prefix)}
    if len(tensors) > MOST_NAMES:
        raise UsageError(f"VAE '{where}' has {len(tensors)} tensors: no VAE has so many")
    tries = sorted(_tries(tensors), key=lambda tried: tried.faults)
    if not tries:
        raise UsageError(f"VAE '{where}' is a file of no VAE that tvae knows: {_some(header.tensors, 'tensor')}")
    best = tries[0]
    if best.faults:
        raise UsageError(f"VAE '{where}' is no VAE that tvae knows; {_nearest(tries)}")
    weights = (piece for name, piece in best.pieces if name.endswith((".weight", ".bias")))
    others = {tensors[piece.stored].dtype for piece in weights} - _STORED
    if others:
        raise UsageError(
            f"VAE '{where}' is stored as {', '.join(sorted(others))}, which tvae does not make weights of; take one in "
            "float32, float16, bfloat16 or float8"
        )
    family = FAMILIES[best.family.class_name]
    kin = [k for k in family.kin if k.fits(best.config)]
    kin, why = _told(kin, header, prefix, where, of)
    if len(kin) > 1 and not prefix and any(one.files for one in kin):
        digest = sha256()
        if known := [one for one in kin if digest in one.files]:
            kin, why = known, f"by its sha256: {known[0].files[digest]}"
    if len({one.class_name for one in kin}) > 1:
        raise UsageError(f"VAE '{where}' cannot be told from another one: {_other(kin)}")
    constants = kin[0].constants if len(kin) == 1 else _undecided(family, kin)
    pieces = {name: Piece(prefix + piece.stored, piece.shape, piece.part, piece.parts) for name, piece in best.pieces}
    config = {**best.config, **constants}
    class_name = (kin[0].class_name if kin else None) or family.class_name
    return Found(class_name, config, pieces, prefix, best.layout.name, tuple(kin), why)


@dataclass(frozen=True)
class _Try:
    """A layout and a configuration beside a file. missing, left, misshapen: names, the module's and the stored ones."""

    family: Family
    layout: Layout
    config: dict[str, Any]
    pieces: tuple[tuple[str, Piece], ...]
    missing: list[str]
    left: list[str]
    misshapen: list[str]

    @property
    def faults(self) -> int:
        return len(self.missing) + len(self.left) + len(self.misshapen)


def _tries(tensors: Mapping[str, TensorSpec]) -> Iterator[_Try]:
    for family in FAMILIES.values():
        for layout in family.layouts:
            if any(re.fullmatch(layout.mark, name) for name in tensors):
                yield from _beside(family, layout, tensors)


def _beside(family: Family, layout: Layout, tensors: Mapping[str, TensorSpec]) -> Iterator[_Try]:
    """Every configuration that the layout offers."""
    found: dict[str, Piece] = {}
    twice: list[str] = []
    for stored, names in module_names(layout, tensors).items():
        shape = tensors[stored].shape
        for part, name in enumerate(names):
            rows = (shape[0] // len(names), *shape[1:]) if shape else ()
            if name in found or (len(names) > 1 and (not shape or shape[0] % len(names))):
                twice.append(stored)
            found.setdefault(name, Piece(stored, rows, part, len(names)))
    shapes: Shapes = {name: piece.shape for name, piece in found.items()}
    for config in layout.configs(shapes):
        expected = expected_shapes(family.class_name, config, tensors)
        if expected is None:
            continue
        pieces, missing, misshapen = [], [], []
        for name, shape in expected.items():
            piece = found.get(name)
            if piece is None:
                missing += [] if name.endswith(_COUNTER) else [name]
            elif _bare(piece.shape) != _bare(shape):
                misshapen.append(piece.stored)
            else:
                pieces.append((name, Piece(piece.stored, shape, piece.part, piece.parts)))
        left = twice + [piece.stored for name, piece in found.items() if name not in expected]
        yield _Try(family, layout, config, tuple(pieces), missing, left, misshapen)


def _told(kin: list[Kin], header: Header, prefix: str, where: Path, of: str | None) -> tuple[list[Kin], str]:
    """Which of these public models it is, and how that is known; all of them if it is not."""
    if of is not None:
        named = [k for k in kin if k.key == of]
        if not named:
            fitting = f"it may be of {_listed([k.key for k in kin], 'or')}" if kin else "no public VAE has such layers"
            raise UsageError(f"VAE '{where}' is not of {of}: {fitting}")
        return named, "as you said"
    if len(kin) == 1:
        return kin, "by its layers"
    architecture = header.metadata.get(ARCHITECTURE, "").lower()
    named = [k for k in kin if k.architecture and re.fullmatch(k.architecture, architecture)]
    if len(named) == 1:
        return named, f"by its metadata ({ARCHITECTURE})"
    others = [name for name in header.tensors if prefix and not name.startswith(prefix)]
    for one in kin:
        if one.beside and any(re.match(one.beside, name) for name in others):
            return [one], "by the rest of the checkpoint"
    return kin, ""


def _other(kin: list[Kin]) -> str:
    """Of models that have the same tensors and compute with them in other ways."""
    which = " or ".join(f"--vae-of {one.key}" for one in kin)
    return f"{' and '.join(one.note for one in kin)} have the same tensors and are not the same; pass {which}"


def _undecided(family: Family, kin: list[Kin]) -> dict[str, Any]:
    """None for every constant that one of them has: not the class's default, which may be another model's."""
    names = {name for one in family.kin for name in one.constants} - {_CAUTION}
    careful = any(one.constants.get(_CAUTION) for one in kin)
    return dict.fromkeys(sorted(names)) | ({_CAUTION: True} if careful else {})


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones at its end: an attention's projections are stored as linear maps or as convolutions of one pixel."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _nearest(tries: list[_Try]) -> str:
    """What the two nearest candidates differ in."""
    texts: list[str] = []
    for tried in tries:
        differs = [
            f"{len(names)} {what} ({names[0]}{', …' if len(names) > 1 else ''})"
            for names, what in ((tried.missing, "missing"), (tried.left, "left over"), (tried.misshapen, "misshapen"))
            if names
        ]
        text = f"{tried.family.class_name} in {tried.layout.name}'s names: {', '.join(differs)}"
        texts += [text] if text not in texts else []
    return f"nearest is {' | '.join(texts[:2])}"


def _some(names: Iterable[str], what: str) -> str:
    first, *more = sorted(names) or [""]
    return f"{1 + len(more)} {what}{'s' if more else ''}, such as '{first}'" if first else f"it has no {what}"


def _listed(names: list[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
