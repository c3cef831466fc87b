"""Inputs that an earlier step of the same job is to make, in a dry run, in which it does not."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.names_below import is_below, is_there

__all__ = ["without_what_is_to_come"]


def without_what_is_to_come(step: Step, made: Set[str]) -> Step | None:
    """The step with those of its inputs that are there; itself where all are, None where none is. made: outputs of
    earlier steps."""
    job = step.job
    inputs = tuple(name for name in job.inputs if not _is_to_come(name, made))
    listed = tuple(one for one in job.listed if not _is_to_come(one.name, made)) if made else job.listed
    if (inputs, listed) == (job.inputs, job.listed):
        return step
    return replace(step, job=replace(job, inputs=inputs, listed=listed)) if inputs or listed else None


def _is_to_come(name: str, made: Set[str]) -> bool:
    """Is it in one of these outputs, and not there yet?"""
    return any(is_below(name, output) for output in made) and not is_there(name)
