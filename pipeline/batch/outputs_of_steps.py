"""What the steps of one job write: no two of them the same output, or one would replace the other's in every run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.names_below import is_below
from tvae.pipeline.batch.seen import Seen
from tvae.pipeline.batch.to_come import without_what_is_to_come
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.listing import listing
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.places import RealNames
from tvae.pipeline.jobs.vaes import OpenVaes, Vaes
from tvae.pipeline.stores import is_url

__all__ = ["OutputsOfSteps", "check_outputs"]


class OutputsOfSteps:
    """Of the steps whose folders are one, or lie in one another. Caches are left out: what several steps put into one
    has names of its own, and a record in common."""

    def __init__(self, steps: Sequence[Step]) -> None:
        folders = [folder for step in steps if (folder := _folder(step)) is not None]
        self._shared = {
            one for n, one in enumerate(folders) if any(_meet(one, other) for other in folders[:n] + folders[n + 1 :])
        }
        self._seen, self._real = Seen(), RealNames()

    def shares(self, step: Step) -> bool:
        """Whether another step writes to this one's folder, or to one above or below it."""
        return _folder(step) in self._shared

    def take(self, step: Step, items: Iterable[Item]) -> None:
        """Raises UsageError where an item's output is that of an earlier step."""
        if not self.shares(step):
            return
        for item in items:
            for path in self._paths(item):
                if self._seen.add(path):
                    raise UsageError(
                        f"{path} is written by two steps of the job, the second time from {item.source}; "
                        "give one of the steps another output"
                    )

    def _paths(self, item: Item) -> set[str]:
        """By all kinds that it may turn out to be."""
        found = set()
        if item.problem is None:
            for kind in item.kinds:
                with suppress(InputError):  # it fails alone
                    found.add(self._real.inside(item.folder, item.output_name(kind)))
        return found


def check_outputs(steps: Sequence[Step], opened: OpenVaes) -> None:
    """Raises UsageError, before the first step is begun, where two of them would write one output.

    Inputs that an earlier step makes are not there yet; `OutputsOfSteps.take` is asked again when they are.
    """
    outputs, made = OutputsOfSteps(steps), set[str]()
    for step in steps:
        here = without_what_is_to_come(step, made) if outputs.shares(step) else None
        made.add(step.output)
        if here is None:
            continue
        try:
            items = listing(here.job, Vaes(here.job, opened=opened)).items
        except UsageError:  # which is told when the step is begun: an earlier one may make what is missing
            continue
        outputs.take(step, items)


def _folder(step: Step) -> str | None:
    here = step.job.operation != "cache" and not is_url(step.output)
    return os.path.normcase(os.path.realpath(step.output)) if here else None


def _meet(one: str, other: str) -> bool:
    return is_below(one, other) or is_below(other, one)
