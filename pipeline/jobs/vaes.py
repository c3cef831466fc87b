"""The VAEs of a run: opened when first needed, one at a time."""

from __future__ import annotations

from tvae.pipeline.device import choose_preset, pick_device
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.memory.limits import check_budget, parse_size
from tvae.pipeline.session.model import Model, open_model

__all__ = ["Vaes"]


class Vaes:
    """Opens VAEs as the job wants them. ``given`` stands in for all of them.

    Raises :class:`UsageError` for a device or preset there is not, and :class:`PlanError` for a budget of more memory
    than the device has, before any VAE is looked for.
    """

    def __init__(self, job: Job, given: Model | None = None) -> None:
        self._job, self._given = job, given
        self._open: tuple[str, Model] | None = None
        self._device = pick_device(job.device)
        if job.vram is not None:
            check_budget(self._device, parse_size(job.vram))
        preset = choose_preset(job.preset, self._device)
        self.queue_frames = preset.queue_frames if preset.io_workers else 0
        """Frames that may wait between two threads; 0 does without threads."""

    def get(self, name: str) -> Model:
        """The VAE ``name``. Another one that was open is let go first: two may not fit into memory.

        Raises :class:`UsageError` if it cannot be loaded or has no posterior where the job wants one.
        """
        if self._given is not None:
            return self._fit(self._given)
        if self._open is None or self._open[0] != name:
            self._open = None
            job = self._job
            model = open_model(
                name,
                preset=job.preset,
                dtype=job.dtype,
                device=str(self._device),
                strip=job.strip,
                vram=job.vram,
                spill=job.spill,
                allow_whole=job.allow_whole,
                threads=job.threads,
            )
            self._open = name, self._fit(model)
        return self._open[1]

    def _fit(self, model: Model) -> Model:
        job = self._job
        if job.operation == "encode" and job.posterior != "mean" and not model.info.posterior:
            raise UsageError(
                f"the VAE '{model.info.id}' ({model.info.class_name}) has no posterior: leave "
                f"--posterior {job.posterior} out"
            )
        return model
