"""Pictures and clips that a run has written beside its inputs: the next one finds them there, and does not take them
for inputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.places import RealNames

__all__ = ["without_own_results"]


def without_own_results(found: list[Found], items: Sequence[Item], job: Job) -> list[Found]:
    """What is found, without the results of others that are found: files of their outputs' names that say that tvae has
    made them. One that the job names stays, and so does any that is the user's, whose name is refused later.

    items: what is found, in the same order.
    """
    if job.operation != "roundtrip":
        return found
    folders = {item.folder for item in items}, {item.source.parent for item in items}
    if set.isdisjoint(*({os.path.realpath(one) for one in each} for each in folders)):
        return found
    real = RealNames()
    inputs = {real(item.source): item for item in items}
    named = {Path(name) for name in (*job.inputs, *(one.name for one in job.listed))}
    results = set[int]()
    for item in items:
        for kind in () if item.exact or item.problem is not None else item.kinds:
            other = inputs.get(real.inside(item.folder, item.output_name(kind)))
            if other is not None and other is not item and other.source not in named and _is_ours(other):
                results.add(other.index)
    return [one for number, one in enumerate(found) if number not in results]


def _is_ours(item: Item) -> bool:
    from tvae.pipeline.media import read_fingerprint

    return item.member is None and read_fingerprint(item.source) is not None
