"""Write latents that a script holds."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from torch import Tensor

from tvae.pipeline.doors.opening import Latents
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.convert import in_space, suits, write_latents
from tvae.pipeline.jobs.describe import identity
from tvae.pipeline.jobs.job import SPACES, Space
from tvae.pipeline.jobs.lengths import frame_count
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.latents import LatentsMeta, LatentsPart, SourceRecord, SpaceRecord
from tvae.pipeline.latents.foreign import WRITTEN, foreign_meta, write_foreign
from tvae.pipeline.models.latent_space import LatentSpace

__all__ = ["save_latents"]

_SLOWEST, _FASTEST = 0.001, 1e6


def save_latents(
    path: str | os.PathLike[str],
    latents: Latents | Tensor,
    *,
    vae: str | os.PathLike[str] | None = None,
    of: str | None = None,
    allow_pickle: bool = False,
    space: Space = "raw",
    fps: float = 24.0,
    overwrite: bool = False,
) -> Path:
    """Write latents, complete or not at all. Returns the path.

    path: its end says what is written: ``.safetensors`` (an image) and ``.latents`` (a clip) in tvae's form,
    ``.latent`` (ComfyUI, raw), ``.npz``, ``.npy`` or ``.pt``. latents: what ``load_latents`` gave, perhaps with another
    ``tensor`` of the same shape; or a tensor, [C, h, w] of an image or [C, t, h, w] of a
    clip, which is written as it is. vae, space: what a tensor is of, for tvae's form. of, allow_pickle: see
    ``load_vae``. fps: of a clip.

    Raises UsageError for a name or a shape that suits no form, or a file that is there; InputError for values that are
    not finite; OutputError.
    """
    target = Path(path)
    suits(target, None)
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists; pass overwrite=True to replace it")
    if isinstance(latents, Latents):
        meta, pts, values, alpha = latents.meta, latents.pts, _named(latents), latents.alpha
        if not all(type(tick) is int for tick in pts):
            raise UsageError(f"pts are whole numbers of ticks of {meta.time_base} s, one a frame, not {[*pts[:3]]}")
        height, width = meta.geometry.size[::-1]
        if alpha is not None and (alpha.shape != (height, width) or alpha.dtype != "uint8"):
            raise UsageError(f"alpha is uint8 [{height}, {width}] of this picture, not {alpha.dtype} {[*alpha.shape]}")
        if target.suffix.lower() == ".latent":
            values = in_space(values, LatentSpace.from_json(meta.space.constants), meta.space.name, "raw")
    elif latents.ndim not in (3, 4):
        raise UsageError(f"latents are [C, h, w] or [C, t, h, w], not {[*latents.shape]}")
    elif target.suffix.lower() in WRITTEN:
        write_foreign(target, {"latents": latents})
        return target
    else:
        meta, pts = _described(target, latents, vae, of, allow_pickle, space, fps)
        alpha = None
        values = {"latents": latents.unsqueeze(1) if latents.ndim == 3 and meta.kind == "video" else latents}
    suits(target, meta)
    try:
        part = LatentsPart(values, 0, 0, pts, (None,) * len(pts), 0, alpha=alpha)
        write_latents(target, [part], meta, overwrite=overwrite)
    except ValueError as error:
        raise UsageError(f"{target}: these latents are not what they are said to be: {error}") from error
    return target


def _named(latents: Latents) -> dict[str, Tensor]:
    if latents.logvar is None:
        return {"latents": latents.tensor}
    return {"mean": latents.tensor, "logvar": latents.logvar}


def _described(
    target: Path,
    tensor: Tensor,
    vae: str | os.PathLike[str] | None,
    of: str | None,
    allow_pickle: bool,
    space: Space,
    fps: float,
) -> tuple[LatentsMeta, tuple[int, ...]]:
    """Raises UsageError where the VAE is not named, or is another one."""
    if vae is None:
        raise UsageError(f"{target.name} says which VAE its latents are of: pass vae")
    if space not in SPACES:
        raise UsageError(f"space '{space}' is not one of {', '.join(SPACES)}")
    if not _SLOWEST <= fps <= _FASTEST:
        raise UsageError(f"fps {fps} is not a frame rate; it is to be from {_SLOWEST} to {_FASTEST:.0f}")
    name = os.fspath(vae)
    job = Job("decode", (str(target),), vae=name, vae_of=of, allow_pickle=allow_pickle, latents_space=space)
    model = Vaes(job).facts(name)
    info = model.info
    record = SpaceRecord(space, info.space.to_json())
    channels = info.latent_channels * (record.patch**2 if space == "model" else 1)
    if tensor.shape[0] != channels:
        raise UsageError(f"this VAE has {channels} channels, the latents {tensor.shape[0]}")
    frames = frame_count(info, tensor.shape[1], True) if tensor.ndim == 4 else 1
    rate = Fraction(fps).limit_denominator(1_000_000)
    meta = foreign_meta(tensor, SourceRecord(target.stem, 0, 0), identity(model), record, frames, rate)
    if meta.kind == "image" and tensor.ndim == 4 and target.suffix.lower() == ".latents":
        meta = replace(meta, kind="video", time_base=1 / rate, frame_rate=rate)
    return meta, tuple(range(frames)) if meta.kind == "video" else ()
