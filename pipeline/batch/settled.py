"""Items that a restart knows to be done by the manifest, without opening their outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.events import ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY
from tvae.pipeline.jobs.fingerprints import of_decoded, of_encoded, of_reconstructed
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.latents import open_latents
from tvae.pipeline.media.formats import Kind
from tvae.presets import builtin

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["Settled"]


class Settled:
    """Call it with each item: the item's last event, or None where it has to be looked at.

    An output counts as done if its size and time are those of its line, and the fingerprint that the line has of it is
    the one that it would get now. Whatever is in doubt is looked at. facts: what a VAE is, by its name; what that
    raises of the VAE that the job names comes out.
    """

    def __init__(self, job: Job, manifest: Manifest, facts: Callable[[str], Model]) -> None:
        self._job, self._manifest, self._facts = job, manifest, facts
        lines_tell = job.operation != "cache" and job.latents_space is None
        self._trusts = job.existing == "skip" and lines_tell
        self.indices: set[int] = set()
        """Of the items that were done."""

    def __call__(self, item: Item) -> ItemSkipped | None:
        if not self._trusts or item.problem is not None:
            return None
        for kind in sorted(item.kinds):
            if self._job.operation == "encode" and kind == "video":
                continue  # a folder, of whose parts its line says nothing
            try:
                output = item.output(kind)
                if self._manifest.says(output, partial(self._fingerprint, item, kind)):
                    self.indices.add(item.index)
                    return ItemSkipped(item.source, item.index, output, DONE_ALREADY)
            except (InputError, OSError):  # which is told when its turn comes
                continue
        return None

    def _fingerprint(self, item: Item, kind: Kind) -> str:
        """That its output would get now."""
        if self._job.operation == "decode":
            from tvae.pipeline.jobs.decode_clip import model_of

            reader = open_latents(item.source)
            return of_decoded(reader, self._job, model_of(reader, self._job, self._facts))
        of = of_encoded if self._job.operation == "encode" else of_reconstructed
        return of(item.origin(), kind, self._job, self._facts(self._job.vae or builtin.NAME))
