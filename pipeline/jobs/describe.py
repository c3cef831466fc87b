"""What is kept beside latents so that a decode needs nothing else, and a stale result is recognised."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.reading import Source
from tvae.pipeline.latents import (
    LatentsMeta,
    PosteriorRecord,
    SourceRecord,
    SpaceRecord,
    VaeIdentity,
)
from tvae.pipeline.media.formats import Kind

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model
    from tvae.pipeline.session.model_info import Known

__all__ = ["describe", "encode_options", "framing", "identity", "kept_posterior", "tool", "without_alpha"]


def describe(origin: SourceRecord, source: Source, job: Job, model: Model) -> LatentsMeta:
    """Metadata of the latents that ``job`` makes of an opened source."""
    info = source.reader.info
    return LatentsMeta(
        kind=info.kind,
        vae=identity(model),
        space=SpaceRecord(job.space, model.info.space.to_json()),
        posterior=kept_posterior(job, model),
        dtype=str(model.dtype).removeprefix("torch."),
        source=origin,
        geometry=source.geometry,
        colour=info.colour,
        rotation=info.rotation,
        mirrored=info.mirrored,
        sample_aspect_ratio=info.sample_aspect_ratio,
        time_base=info.time_base,
        frame_rate=info.frame_rate,
        options=encode_options(job, info.kind),
        tool=tool(),
    )


def kept_posterior(job: Job, model: Model) -> PosteriorRecord:
    """What encoding keeps of the posterior."""
    kind = job.posterior if model.info.posterior else "none"
    return PosteriorRecord(kind, job.seed if kind == "sample" else None)


def encode_options(job: Job, kind: Kind) -> dict[str, object]:
    """What else was asked for that changes latents."""
    return framing(job) | ({"audio": job.audio} if kind == "video" else without_alpha(job))


def without_alpha(job: Job) -> dict[str, object]:
    """That an image's alpha is to be left out; nothing where it is not, so that results of earlier versions count."""
    return {"alpha": job.alpha} if job.alpha == "drop" else {}


def framing(job: Job) -> dict[str, object]:
    """What was asked for of the picture's size."""
    return {"size": job.size, "align": job.align} | ({"fit": job.fit} if job.size else {})


def identity(model: Known) -> VaeIdentity:
    """The VAE as latents remember it."""
    info = model.info
    return VaeIdentity(
        id=info.id,
        class_name=info.class_name,
        config_sha256=info.config_hash,
        weights_sha256=info.weights_sha256,
        latent_channels=info.latent_channels,
        spatial_factor=info.spatial_factor,
        temporal_factor=info.temporal_factor,
        path=info.path,
        values=info.values,
    )


@cache
def tool() -> str:
    """Name and version of this program. Read once: it is in the metadata of every file."""
    try:
        return f"tvae {version('tvae')}"
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "tvae"
