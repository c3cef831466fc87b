"""The VAEs of a run: opened when first needed, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.memory.amount import parse_size
from tvae.pipeline.settings.cores import usable_cores
from tvae.pipeline.settings.early_cuda import begin_cuda
from tvae.presets import builtin

if TYPE_CHECKING:
    import torch

    from tvae.pipeline.models.calls import Side
    from tvae.pipeline.session.model import Model
    from tvae.presets import Preset

__all__ = ["KindOf", "OpenVaes", "Vaes"]

KindOf = Callable[[str], Callable[..., "Model"]]
_Key = tuple[str | int | bool | None, ...]


class OpenVaes:
    """VAEs that are open, which several runs may share, one after the other: one to compute, and the facts of all."""

    def __init__(self) -> None:
        self._computing: tuple[_Key, Model] | None = None
        self._facts: dict[_Key, Model] = {}
        self._lock = threading.Lock()

    def computing(self, key: _Key, opened: Callable[[], Model]) -> Model:
        """The VAE to compute with. Another one that was open is let go first: two may not fit into memory."""
        with self._lock:
            if self._computing is None or self._computing[0] != key:
                self._computing = None
                self._computing = key, opened()
            return self._computing[1]

    def facts(self, key: _Key, opened: Callable[[], Model]) -> Model:
        """The VAE to ask what it is; what it is, its checksum included, is found out once."""
        found = self._facts.get(key)
        if found is None:
            with self._lock:
                if key not in self._facts:
                    model = opened()
                    assert model.info.weights_sha256
                    self._facts[key] = model
                found = self._facts[key]
        return found


class Vaes:
    """Opens VAEs as the job wants them. ``given`` stands in for all of them. Imports PyTorch when it is first asked.

    kind_of: is told the name of each that is opened to compute, and gives what is made of it; see ``open_model``.
    opened: shared with other runs, whose VAEs are of the usual kind.
    """

    def __init__(
        self,
        job: Job,
        given: Model | None = None,
        kind_of: KindOf | None = None,
        opened: OpenVaes | None = None,
    ) -> None:
        assert kind_of is None or opened is None
        self._job, self._given, self._kind_of = job, given, kind_of
        self._shared = opened or OpenVaes()
        self._known: dict[str, Model] = {}
        """Facts that were asked for before."""

    def check(self) -> None:
        """Raises :class:`UsageError` for a device or preset there is not, and :class:`PlanError` for a budget of more
        memory than the device has, before any VAE is looked for. An exact dry run also raises as ``get`` does for the
        job's own VAE. A dry run imports nothing to know what is there on every machine."""
        job = self._job
        if not job.dry_run or job.device not in (None, "cpu") or job.preset != "auto" or job.vram is not None:
            self._check_hardware()
        if job.exact and job.operation in ("encode", "roundtrip") and not self._is_builtin():
            self.facts(job.vae or builtin.NAME)

    def _check_hardware(self) -> None:
        begin_cuda(self._job.device)

        from tvae.pipeline.memory.limits import check_budget

        if self._job.vram is not None:
            check_budget(self.device, parse_size(self._job.vram))
        assert self._preset

    def _is_builtin(self) -> bool:
        """The VAE that comes with tvae, in the preset's type: it can be opened, and fits every job."""
        job = self._job
        return self._given is None and job.vae in (None, builtin.NAME) and job.dtype is None and job.vae_of is None

    @cached_property
    def device(self) -> torch.device:
        from tvae.pipeline.device import pick_device

        return pick_device(self._job.device)

    @cached_property
    def _preset(self) -> Preset:
        from tvae.pipeline.device import choose_preset

        return choose_preset(self._job.preset, self.device)

    @property
    def threads(self) -> int:
        """That read items, and as many that write them; 0: items go one after the other. Pictures take a core a tenth
        of a second each to compress: jobs that write them have up to twice the preset's threads, on three of four
        cores."""
        workers = self._preset.io_workers
        if self._job.operation not in ("decode", "roundtrip"):
            return workers
        return max(workers, min(2 * workers, 3 * usable_cores() // 4))

    @property
    def queue_frames(self) -> int:
        """Frames of a clip that may wait between two threads; 0 does without threads."""
        return self._preset.queue_frames if self._preset.io_workers else 0

    def get(self, name: str) -> Model:
        """The VAE ``name``, to compute. Another one that was open is let go first.

        Raises :class:`UsageError` if it cannot be loaded or has no posterior where the job wants one.
        """
        model = self._given or self._shared.computing(self._key(name), lambda: self._opened(name, self._kind_of))
        if self._job.operation == "decode":
            _check(model, "decode")
        return self._fit(model)

    def facts(self, name: str) -> Model:
        """The VAE ``name``, to be asked what it is, in any thread. It holds no weights. Raises as ``get`` does."""
        if self._given is not None:
            return self._fit(self._given)
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._fit(self._shared.facts(self._key(name), lambda: self._opened(name)))
        return found

    def _key(self, name: str) -> _Key:
        """All that opening depends on."""
        job = self._job
        how = (job.vae_of, job.allow_pickle, job.preset, job.dtype, job.strip, job.vram, job.spill, job.allow_whole)
        return (name, str(self.device), job.threads, job.wait_for_kernels, job.sharers, *how)

    def _opened(self, name: str, kind_of: KindOf | None = None) -> Model:
        from tvae.pipeline.session.model import open_model

        job = self._job
        return open_model(
            name,
            vae_of=job.vae_of,
            allow_pickle=job.allow_pickle,
            preset=job.preset,
            dtype=job.dtype,
            device=str(self.device),
            strip=job.strip,
            vram=job.vram,
            spill=job.spill,
            allow_whole=job.allow_whole,
            threads=job.threads,
            sharers=job.sharers,
            wait_for_kernels=job.wait_for_kernels,
            kind=None if kind_of is None else kind_of(name),
        )

    def _fit(self, model: Model) -> Model:
        job = self._job
        if job.operation != "decode":  # there, it may be what latents are of, and not what computes
            _check(model, "encode")
        if job.operation == "roundtrip":
            _check(model, "decode")
        wanted = {"encode": job.space, "decode": job.latents_space}.get(job.operation)
        if wanted == "model" and (unknown := model.info.space.unknown) is not None:
            raise UsageError(
                f"nothing is known of the model space of VAE '{model.info.id}': {unknown}; say which model it is of "
                "(--vae-of), or keep --space raw"
            )
        if job.operation == "encode" and job.posterior != "mean" and not model.info.posterior:
            raise UsageError(
                f"the VAE '{model.info.id}' ({model.info.class_name}) has no posterior: leave "
                f"--posterior {job.posterior} out"
            )
        if (job.batch or 1) > 1 and model.info.temporal_factor is not None:
            raise UsageError(
                f"--batch {job.batch} is for pictures of an image VAE, and '{model.info.id}' ({model.info.class_name}) "
                "takes one clip at a time; leave it out"
            )
        return model


def _check(model: Model, side: Side) -> None:
    """Raises :class:`UsageError` where the VAE has no weights for this side."""
    from tvae.pipeline.models.one_side import check_lacks

    check_lacks(model.info.lacks, side)
