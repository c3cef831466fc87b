"""What a conversion between caches is to do, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvae.pipeline.caches import CacheRequest, trainer_named
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job, Space

__all__ = ["Conversion"]


@dataclass(frozen=True)
class Conversion:
    """Raises UsageError for trainers that there is no file for, for shards, and for what contradicts itself."""

    job: Job
    """Of the operation cache: its only input is what is converted, its output the folder that it goes to; ``existing``,
    ``vae``, ``size`` and ``seed`` as there. ``cache`` is the cache that is written or, where tvae's own latents are,
    the one that is read."""
    out_of: CacheRequest | None = None
    """The cache that is read; None: tvae's own latents are."""
    into_own: bool = False
    """tvae's own latents are written."""
    pictures: Path | None = None
    """Folder of the images and videos that a cache was made of; None: looked for in the cache itself."""
    space: Space | None = None
    """Of tvae's own latents that are written; None: that of the cache."""

    def __post_init__(self) -> None:
        assert self.job.cache is not None, "a job that caches has one"
        assert self.out_of is not None or not self.into_own, "from one's own into one's own is no conversion"
        if self.out_of is not None:
            _check(self.out_of, "--from", "are read by their loaders alone")
            if self.job.vae is None:
                raise UsageError("a cache does not say which VAE it is of: pass --vae")
        if not self.into_own:
            _check(self.job.cache, "--for", "are filled by tvae cache, from pictures")
        if self.pictures is not None and not self.pictures.is_dir():
            raise UsageError(f"the folder of --source, {self.pictures}, does not exist")

    @property
    def images(self) -> list[Path]:
        """Folders that the images lie in, as far as that is known."""
        if self.pictures is not None:
            return [self.pictures]
        return [] if self.out_of is None else [Path(self.job.inputs[0])]


def _check(request: CacheRequest, option: str, why_no_shards: str) -> None:
    trainer = trainer_named(request.trainer, option)
    if trainer.form is not None:
        raise UsageError(f"shards of {trainer.name} {why_no_shards}; tvae convert knows caches of single files")
    names = [one.name for one in trainer.architectures]
    if request.architecture is not None and request.architecture not in names:
        raise UsageError(
            f"{trainer.name} has no architecture '{request.architecture}' that tvae can cache for; one of "
            f"{', '.join(names)}"
        )
