"""How a file of weights names a VAE's tensors, and how its configuration is read off their shapes.

A family's file has a ``Layout`` for every program whose names people meet: diffusers' own, those of the research code,
ComfyUI's. A layout is data, so that a header alone tells what a file is, without building a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["DIFFUSERS_2D", "LDM_2D", "LDM_RULES", "OLD_ATTENTION"]
__all__ += ["Kin", "Layout", "Rules", "Shapes", "bare", "count", "module_names", "only"]

Shapes = Mapping[str, tuple[int, ...]]
"""By the module's names."""

Rules = tuple[tuple[str, str], ...]
"""Patterns, and what takes their place."""

OLD_ATTENTION = (
    (r"(\.attentions\.\d+)\.query\.", r"\1.to_q."),
    (r"(\.attentions\.\d+)\.key\.", r"\1.to_k."),
    (r"(\.attentions\.\d+)\.value\.", r"\1.to_v."),
    (r"(\.attentions\.\d+)\.proj_attn\.", r"\1.to_out.0."),
)
"""Names from before diffusers 0.17."""

DIFFUSERS_2D = r"(encoder\.down|decoder\.up)_blocks\.0\.resnets\.0\.conv1\.weight"
LDM_2D = r"(encoder\.down|decoder\.up)\.0\.block\.0\.conv1\.weight"
"""Marks of either side."""

LDM_RULES = (
    (r"^(encoder|decoder)\.norm_out\.", r"\1.conv_norm_out."),
    (r"^(encoder|decoder)\.mid\.block_1\.", r"\1.mid_block.resnets.0."),
    (r"^(encoder|decoder)\.mid\.block_2\.", r"\1.mid_block.resnets.1."),
    (r"^(encoder|decoder)\.mid\.attn_1\.norm\.", r"\1.mid_block.attentions.0.group_norm."),
    (r"^(encoder|decoder)\.mid\.attn_1\.([qkv])\.", r"\1.mid_block.attentions.0.to_\2."),
    (r"^(encoder|decoder)\.mid\.attn_1\.proj_out\.", r"\1.mid_block.attentions.0.to_out.0."),
    (r"^encoder\.down\.(\d+)\.block\.(\d+)\.", r"encoder.down_blocks.\1.resnets.\2."),
    (r"^encoder\.down\.(\d+)\.downsample\.", r"encoder.down_blocks.\1.downsamplers.0."),
    (r"^decoder\.up\.(\d+)\.block\.(\d+)\.", r"decoder.up_blocks.~\1.resnets.\2."),
    (r"^decoder\.up\.(\d+)\.upsample\.", r"decoder.up_blocks.~\1.upsamplers.0."),
    (r"\.nin_shortcut\.", r".conv_shortcut."),
)
"""Latent Diffusion's names, which ComfyUI, kohya's scripts and Black Forest Labs keep."""

_FLIPPED = re.compile(r"~(\d+)")


@dataclass(frozen=True)
class Layout:
    """The names that one program gives to the tensors of one class.

    name: whose names they are. mark: a pattern that some name matches whole, of a file of either side alone, too; where
    none does, the file is most likely of another layout. configs: configurations that a module with such shapes may
    have, by the module's names, of both sides or of one; none where the shapes are no such module's. rules: patterns
    and what takes their place, applied to every name in turn. A number that ``~`` precedes counts from the other end. A
    name that ``|`` divides stands for several tensors, equal parts of the stored one along dimension 0. unused:
    patterns of names that the module does without.
    """

    name: str
    mark: str
    configs: Callable[[Shapes], Iterable[dict[str, Any]]]
    rules: Rules = ()
    unused: tuple[str, ...] = ()

    @property
    def whose(self) -> str:
        """The name, before what is its."""
        return f"{self.name}'" if self.name.endswith("s") else f"{self.name}'s"


@dataclass(frozen=True)
class Kin:
    """A public model, or several, with VAEs of one configuration: what shapes do not tell.

    key: the name that ``--vae-of`` takes. note: which models. layers: what its configuration says that shapes tell.
    constants: what it says beyond. beside: a pattern of a name elsewhere in a checkpoint that no other model has, or
    only models further down in the family's table. class_name: of a model of another class, whose tensors have the same
    names and shapes, and which computes with them in another way. architecture: a pattern of its name in ModelSpec
    metadata. files: published files of its VAE alone, the names of their VAEs by the sha256 of all their bytes.
    """

    key: str
    note: str
    layers: dict[str, Any]
    constants: dict[str, Any] = field(default_factory=dict)
    beside: str | None = None
    architecture: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    class_name: str | None = None

    @property
    def scaling(self) -> tuple[float, float] | None:
        """Scale and shift on the way into model space; None: not by two numbers."""
        scale, shift = self.constants.get("scaling_factor"), self.constants.get("shift_factor", 0.0)
        return None if scale is None or "latents_mean" in self.constants else (scale, shift)

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration that was read off shapes may be this one's."""
        return all(_plain(config.get(name)) == _plain(value) for name, value in self.layers.items())


def module_names(layout: Layout, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By stored name: what the module calls it. Several names are equal parts; none, if the module does without."""
    renamed = {name: _renamed(layout, name) for name in names}
    last = max((int(m[1]) for new in renamed.values() for m in _FLIPPED.finditer(new)), default=0)
    flipped = {name: _FLIPPED.sub(lambda m: str(last - int(m[1])), new) for name, new in renamed.items()}
    return {name: tuple(filter(None, new.split("|"))) for name, new in flipped.items()}


def bare(layout: Layout, part: str, mark: str) -> Layout:
    """The layout of files with one part of the module, whose names leave out what it is called: ``0.weight`` for
    ``encoder.0.weight``."""
    return replace(layout, mark=mark, rules=((r"^", f"{part}."), *layout.rules))


def _renamed(layout: Layout, name: str) -> str:
    if any(re.fullmatch(pattern, name) for pattern in layout.unused):
        return ""
    for pattern, replacement in layout.rules:
        name = re.sub(pattern, replacement, name)
    return name


def only(*configs: dict[str, Any]) -> Callable[[Shapes], Iterable[dict[str, Any]]]:
    """Published configurations, where shapes do not tell all of what a module computes."""
    return lambda _shapes: configs


def count(shapes: Shapes, pattern: str) -> int:
    """How many numbers stand where the pattern has a group: of blocks, of layers."""
    found = (re.match(pattern, name) for name in shapes)
    return len({match[1] for match in found if match})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
