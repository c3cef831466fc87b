"""Inputs that an earlier step of the same job is to make, in a dry run, in which it does not."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from tvae.pipeline.batch.job_file import Step

__all__ = ["without_what_is_to_come"]


def without_what_is_to_come(step: Step, made: Set[Path]) -> Step | None:
    """The step with those of its inputs that are there; itself where all are, None where none is. made: folders that
    earlier steps write to."""
    job = step.job
    inputs = tuple(name for name in job.inputs if not _is_to_come(Path(name), made))
    listed = tuple(one for one in job.listed if not _is_to_come(Path(one.name), made)) if made else job.listed
    if (inputs, listed) == (job.inputs, job.listed):
        return step
    return replace(step, job=replace(job, inputs=inputs, listed=listed)) if inputs or listed else None


def _is_to_come(path: Path, made: Set[Path]) -> bool:
    """Is it in one of these folders, and not there yet?"""
    return any(folder in made for folder in (path, *path.parents)) and not path.exists()
