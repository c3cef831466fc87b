"""What VAE a safetensors file holds, alone or inside a checkpoint: known by names and shapes, from its header alone.

A file is a VAE that tvae knows where, under the names of one layout, every tensor of the module is there in its shape,
and no other; or every tensor of one side, and none of the other side. What shapes do not tell (the scale of model
space) is taken from the rest of the checkpoint or from the file's metadata where they name the model, and else stays
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import Header, TensorSpec
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.candidates import Candidate, Piece, beside, joined
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.families.family import Family
from tvae.pipeline.models.layout import Kin
from tvae.pipeline.models.nearest import alike, what_is_near
from tvae.pipeline.models.one_side import part_of

__all__ = ["Found", "both_sides", "recognise"]

PREFIXES = ("first_stage_model.", "vae.")
"""Of a VAE's tensors inside a checkpoint."""
ARCHITECTURE = "modelspec.architecture"
"""Where files that follow Stability AI's ModelSpec say what they are."""
_CAUTION = "force_upcast"
"""Says that float16 overflows: where any of several models says so, it is believed."""
MOST_NAMES = 1 << 16
"""Of tensors; no VAE has a tenth of them."""


@dataclass(frozen=True)
class Found:
    """A VAE in a file, or in two. kin: what public models it may be of; the one, if that is known. absent: the side of
    which it has no weights."""

    class_name: str
    config: dict[str, Any]
    pieces: dict[str, Piece]
    prefix: str
    layout: str
    kin: tuple[Kin, ...]
    why: str
    absent: Side | None
    candidate: Candidate = field(repr=False, compare=False)

    def describe(self) -> dict[str, Any]:
        """JSON-able: what it is and how that is known."""
        return {
            "layout": self.layout,
            "prefix": self.prefix,
            "of": ", ".join(one.note for one in self.kin) or None,
            "why": self.why,
            "unknown": self.space_unknown,
            "absent": self.absent,
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
    known = [one for one in _marked(tensors) if not one.faults]
    if not known:
        candidates = alike(tensors)
        known = [one for one in candidates if not one.faults]
        if not known:
            raise UsageError(f"VAE '{where}' {what_is_near(tensors, candidates, prefix)}")
    best = known[0]
    if any((one.family, one.config) != (best.family, best.config) for one in known):
        raise UsageError(f"VAE '{where}' cannot be told from another one: {_several(known)}")
    weights = (piece for name, piece in best.pieces.items() if name.endswith((".weight", ".bias")))
    others = {tensors[piece.stored].dtype for piece in weights} - _STORED
    if others:
        raise UsageError(
            f"VAE '{where}' is stored as {', '.join(sorted(others))}, which tvae does not make weights of; take one in "
            "float32, float16, bfloat16 or float8"
        )
    kin = [k for k in best.family.kin if k.fits(best.config)]
    kin, why = _told(kin, header, prefix, where, of)
    if len(kin) > 1 and not prefix and any(one.files for one in kin):
        digest = sha256()
        if named := [one for one in kin if digest in one.files]:
            kin, why = named, f"by its sha256: {named[0].files[digest]}"
    if len({one.class_name for one in kin}) > 1:
        raise UsageError(f"VAE '{where}' cannot be told from another one: {_other(kin)}")
    return _found(best, prefix, kin, why)


def both_sides(one: Found, other: Found, same: Callable[[Collection[str]], bool]) -> Found | None:
    """The VAE of which two files have a side each: ``one`` of the first, ``other`` of the second. None: of no VAE.
    same: see ``joined``."""
    candidate = joined(one.candidate, other.candidate, same)
    kin = [each for each in one.kin if each in other.kin]
    if candidate is None or one.prefix or other.prefix or (not kin and (one.kin or other.kin)):
        return None
    return _found(candidate, "", kin, one.why or other.why)


def _marked(tensors: Mapping[str, TensorSpec]) -> Iterator[Candidate]:
    """Of the layouts whose marks the file has."""
    for family in FAMILIES.values():
        for layout in family.layouts:
            if any(re.fullmatch(layout.mark, name) for name in tensors):
                yield from beside(family, layout, tensors)


def _found(best: Candidate, prefix: str, kin: list[Kin], why: str) -> Found:
    constants = kin[0].constants if len(kin) == 1 else _undecided(best.family, kin)
    pieces = {name: replace(piece, stored=prefix + piece.stored) for name, piece in best.pieces.items()}
    config = {**best.config, **constants}
    class_name = (kin[0].class_name if kin else None) or best.family.class_name
    return Found(class_name, config, pieces, prefix, best.layout.name, tuple(kin), why, best.absent, best)


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


def _several(known: list[Candidate]) -> str:
    """Of sides that several models have alike."""
    names = _listed(sorted({one.family.class_name for one in known}), "and")
    absent = known[0].absent
    if absent is None:
        return f"{names} have the same tensors"
    return f"several models ({names}) have such a side; take a file that has the {part_of(absent)}, too"


def _undecided(family: Family, kin: list[Kin]) -> dict[str, Any]:
    """None for every constant that one of them has: not the class's default, which may be another model's."""
    names = {name for one in family.kin for name in one.constants} - {_CAUTION}
    careful = any(one.constants.get(_CAUTION) for one in kin)
    return dict.fromkeys(sorted(names)) | ({_CAUTION: True} if careful else {})


def _listed(names: list[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
