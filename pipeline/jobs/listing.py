"""What a job is about, before anything is done: its items, and which outputs are promised to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvae.pipeline.jobs.cache_names import check_cache
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.other_programs import told_apart
from tvae.pipeline.jobs.outputs import Claims, Item, assign
from tvae.pipeline.jobs.own_results import without_own_results
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.jobs.scanned import DistinctOutputs, scanned
from tvae.pipeline.jobs.vaes import Vaes

__all__ = ["Listing", "listing"]


@dataclass(frozen=True)
class Listing:
    """items: those that a run does. claims: of all of a job's, of which these may be a part; they keep their numbers
    and outputs, and one that is alone fails as among others."""

    items: Sequence[Item]
    claims: Claims


def listing(job: Job, vaes: Vaes, uploads: Uploads | None = None) -> Listing:
    """All items of a job. vaes: asked where other programs' latents are read. uploads: where its output is elsewhere.

    Raises :class:`UsageError` for inputs that there are not, and for outputs that cannot be written or clash.
    """
    if uploads is None and (files := scanned(job)) is not None:
        return Listing(files, DistinctOutputs())
    found = expand(job, uploads)
    if job.latents_space is not None:
        vaes.check()
        found = told_apart(found, job, vaes.facts)
    items = assign(found, job)
    if uploads is None and len(inputs := without_own_results(found, items, job)) < len(found):
        items = assign(inputs, job)
    check_cache(items, job)
    return Listing(items, Claims(items))
