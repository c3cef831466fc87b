"""Flags of ``tvae bench`` to what is measured. Imports the pipeline; use inside commands."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import torch

from tvae.kernels import LEVELS, OPERATIONS
from tvae.pipeline.device import choose_preset, pick_device
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.model import DTYPES
from tvae.presets import Preset

if TYPE_CHECKING:
    from torch import nn

    from tvae.pipeline.bench.first_use import FirstUseModel
    from tvae.pipeline.bench.vae import VaeCase
    from tvae.pipeline.models.calls import Side
    from tvae.pipeline.models.families import LatentGeometry

__all__ = [
    "Setting",
    "batches",
    "cases",
    "existing",
    "levels",
    "model",
    "operations",
    "plot_path",
    "reference",
    "refuse",
    "rivals",
    "setting",
    "sizes",
    "subject",
]


@dataclass(frozen=True)
class Setting:
    """Where and how everything runs."""

    preset: Preset
    device: torch.device
    dtype: torch.dtype

    @property
    def machine(self) -> str:
        """The card's or processor's name, and the version of PyTorch."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type.upper()
        return f"{name}, torch {torch.__version__}"

    @property
    def words(self) -> str:
        """One line for people."""
        return f"{self.machine}, {str(self.dtype).removeprefix('torch.')}, preset {self.preset.name}"


def setting(preset: str, dtype: str | None, device: str | None) -> Setting:
    """Raises UsageError for names that do not exist here."""
    where = pick_device(device)
    chosen = choose_preset(preset, where)
    known = {**DTYPES, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "float64": torch.float64}
    name = dtype or chosen.dtype
    if name not in known:
        refuse(f"unknown dtype '{name}'; one of {', '.join(known)}")
    return Setting(chosen, where, known[name])


def levels(text: str | None) -> tuple[str, ...]:
    """Of --levels."""
    return _named(text, LEVELS, "level")


def operations(text: str | None) -> tuple[str, ...]:
    """Of --ops."""
    return _named(text, OPERATIONS, "operation")


def rivals(
    text: str | None, channels_last: bool | None, compiled: bool | None, device: torch.device
) -> tuple[str, ...]:
    """Who runs, ours always, in the order of measuring. A flag of its own outweighs --rivals."""
    from tvae.pipeline.bench.rivals import RIVALS

    usual = {"diffusers", "tiled", "channels-last" if device.type == "cpu" else ""}
    usual |= {"compile"} if device.type == "cuda" else set()
    chosen = usual if text is None else set(_named(text, tuple(RIVALS), "rival"))
    for name, wanted in (("channels-last", channels_last), ("compile", compiled)):
        if wanted is not None:
            chosen = chosen | {name} if wanted else chosen - {name}
    return tuple(name for name in RIVALS if name in chosen or name == "tvae")


def sizes(text: str | None) -> tuple[tuple[int, int], ...] | None:
    """``512,2048x1024`` to (width, height) each; None: the usual ones."""
    return None if text is None else tuple(_size(part) for part in text.split(","))


def batches(text: str) -> tuple[int, ...]:
    """``1,4,16``."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        refuse(f"--batch {text} is not a list of numbers from 1 up, such as 1,4,16")
    return tuple(map(int, parts))


def reference(name: str | None, dtype: torch.dtype) -> torch.dtype | None:
    """Of --reference; one that is wider than the computation, if it is not named."""
    if name is None:
        return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
    return {"float32": torch.float32, "float64": torch.float64}.get(name)


def model(
    spec: str | None, config: str | None, of: str | None = None, *, allow_pickle: bool = False
) -> tuple[nn.Module, str]:
    """The diffusers module in float32 or as stored, on the CPU, and its name. of, allow_pickle: see `locate_vae`."""
    from tvae.pipeline.bench.shapes import SHAPES, build
    from tvae.pipeline.models.load import load_module, locate_vae

    if config is not None:
        if spec is not None:
            refuse("--vae and --config cannot be used together")
        if of is not None or allow_pickle:
            refuse("--vae-of and --allow-pickle say how a --vae is read; --config has none")
        _check_known(config, tuple(SHAPES), "config")
        return build(SHAPES[config]), f"{SHAPES[config].note}'s shape, random weights"
    return load_module(locate_vae(spec or "builtin", of, allow_pickle=allow_pickle)), spec or "builtin"


def subject(
    setting: Setting,
    spec: str | None,
    config: str | None,
    strip: int | None,
    of: str | None = None,
    *,
    allow_pickle: bool = False,
) -> FirstUseModel:
    """The same for processes of their own."""
    from tvae.pipeline.bench.first_use import FirstUseModel

    dtype = str(setting.dtype).removeprefix("torch.")
    source, device = str(setting.preset.source), str(setting.device)
    return FirstUseModel(spec, config, source, device, dtype, strip, of, allow_pickle)


def cases(
    of: nn.Module,
    side: Literal["encode", "decode", "both"],
    shapes: Sequence[tuple[int, int]] | None,
    batch: Sequence[int],
    frames: int | None,
    device: torch.device,
) -> list[VaeCase]:
    """Every side, size and batch. Raises UsageError for what this VAE cannot represent."""
    from tvae.pipeline.bench.vae import geometry, make_case

    known = geometry(of)
    sides: tuple[Side, ...] = ("encode", "decode") if side == "both" else (side,)
    slow = device.type == "cpu"
    if known.temporal is not None and frames is None:
        frames = 5 if slow else 17
    shapes = shapes or _usual_sizes(known, slow)
    return [make_case(known, one, *shape, n, frames) for one in sides for shape in shapes for n in batch]


def plot_path(text: str | None) -> Path | None:
    """Checked before anything is measured."""
    if text is None:
        return None
    from tvae.pipeline.bench.plot import check_plot

    check_plot(Path(text))
    return Path(text)


def existing(text: str | None, *, folder: bool = False) -> str | None:
    """A file or folder that must be there."""
    if text is not None:
        if not Path(text).exists():
            refuse(f"{text} does not exist")
        if Path(text).is_dir() != folder:
            refuse(f"{text} is {'not ' if folder else ''}a folder")
    return text


def refuse(message: str) -> NoReturn:
    """UsageError."""
    raise UsageError(message)


def _usual_sizes(of: LatentGeometry, slow: bool) -> tuple[tuple[int, int], ...]:
    if slow:
        return ((128, 128),)
    return ((512, 512), (1024, 1024)) if of.temporal is None else ((832, 480),)


def _named(text: str | None, known: Sequence[str], kind: str) -> tuple[str, ...]:
    """Names of a list, in its order; all of them for None."""
    if text is None:
        return tuple(known)
    given = [part.strip() for part in text.split(",")]
    for name in given:
        _check_known(name, known, kind)
    return tuple(name for name in known if name in given)


def _check_known(name: str, known: Sequence[str], kind: str) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        refuse(f"unknown {kind} '{name}'{hint} (there are: {', '.join(known)})")


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        refuse(f"--sizes {text} is not a list of N or WxH, such as 512,2048x1024")
    width, height = (int(parts[0]), int(parts[-1]))
    return width, height
