"""What results were made from: known before any work, kept in the file, and compared when it is there.

Whatever changes the result counts, and the strip height, the device and the preset do not: the type that a preset
chooses does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvae.pipeline import latents
from tvae.pipeline.jobs.describe import encode_options, framing, identity, kept_posterior, without_alpha
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.writing import write_options
from tvae.pipeline.latents import LatentsReader, PosteriorRecord, SourceRecord
from tvae.pipeline.media.formats import Kind

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["of_decoded", "of_encoded", "of_reconstructed"]


def of_encoded(source: SourceRecord, kind: Kind, job: Job, model: Model) -> str:
    """Of the latents that ``job`` makes of an image or a video: ``LatentsMeta.fingerprint``."""
    return latents.fingerprint(
        source=source,
        vae=identity(model),
        space=job.space,
        posterior=kept_posterior(job, model),
        dtype=str(model.dtype).removeprefix("torch."),
        options=encode_options(job, kind),
    )


def of_decoded(reader: LatentsReader, job: Job, model: Model) -> str:
    """Of the picture or clip that ``job`` makes of latents.

    Their own fingerprint is not all: other programs may have changed the values since, or this may be one part of a
    clip. So the files count too, by size and time, as sources do.
    """
    meta = reader.meta
    files = [(status.st_size, status.st_mtime_ns) for status in (file.stat() for file in reader.files)]
    return latents.fingerprint(
        source=meta.source,
        vae=identity(model),
        space=meta.space.name,
        posterior=meta.posterior,
        dtype=str(model.dtype),
        options={"decoded": meta.fingerprint, "files": files, "written": _written(job, meta.kind)},
    )


def of_reconstructed(source: SourceRecord, kind: Kind, job: Job, model: Model) -> str:
    """Of the picture or clip that ``job`` makes of an image or a video by way of the posterior's mean."""
    return latents.fingerprint(
        source=source,
        vae=identity(model),
        space="raw",
        posterior=PosteriorRecord("mean" if model.info.posterior else "none"),
        dtype=str(model.dtype),
        options={"reconstructed": framing(job), "written": _written(job, kind)},
    )


def _written(job: Job, kind: Kind) -> dict[str, object]:
    """The wishes for the file that have a meaning for its kind."""
    options = write_options(job, kind)
    return {
        "kind": kind,
        "codec": options.codec,
        "crf": None if options.crf is None else float(options.crf),
        "pix_fmt": options.pix_fmt,
        "enc": options.enc,
        "fps": options.fps,
        "audio": job.audio if kind == "video" else None,
        "colour": options.colour,
    } | (without_alpha(job) if kind == "image" else {})
