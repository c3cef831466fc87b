"""The step of a job file that says what a command's flags said: the way back from ``Job``."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from tvae.pipeline.batch.keys import Key, cache_keys, keys
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import names_a_file
from tvae.pipeline.jobs.remote.refusals import urls_of
from tvae.pipeline.stores import is_url, parse_url
from tvae.presets import builtin

__all__ = ["said_of"]


def said_of(job: Job) -> dict[str, Any]:
    """What differs from the defaults, as TOML has it. Names are from the root, so that the file may be kept anywhere.

    Raises UsageError for an output that the operation does not write, and for URLs with secrets, which are not printed.
    """
    for url in urls_of(job):
        shown = parse_url(url).shown
        if shown.partition("://")[2].rstrip("/") != url.partition("://")[2].rstrip("/"):
            raise UsageError(f"{shown} is named with a password or a query, which is not printed")
    said: dict[str, Any] = {"operation": job.operation}
    if job.inputs:
        said["inputs"] = [_input(name) for name in job.inputs]
    if job.listed:
        said["listed"] = [_input(one.name) for one in job.listed]
    is_file = (
        job.output is not None and job.operation != "cache" and names_a_file(job.output, job.operation == "encode")
    )
    said["output_file" if is_file else "output"] = _absolute(job.output) if job.output else os.getcwd()
    said |= _changed(job, keys())
    if "vae" in said and said["vae"] != builtin.NAME and os.path.exists(said["vae"]):
        said["vae"] = _absolute(said["vae"])
    if "spill" in said:
        said["spill"] = _absolute(said["spill"])
    if job.cache is not None:
        said["cache"] = _changed(job.cache, cache_keys())
    return said


def _changed(described: Any, known: Mapping[str, Key]) -> dict[str, Any]:
    """Fields of a dataclass that are not as they are by default."""
    found = {}
    for field in fields(described):
        value = getattr(described, field.name)
        if field.name in known and (field.default is MISSING or value != field.default):
            found[field.name] = known[field.name].written(value)
    return found


def _input(name: str) -> str:
    """A pattern is one below the current folder, whatever that is called."""
    if os.path.lexists(name) or not glob.has_magic(name) or is_url(name):
        return _absolute(name)
    return os.path.join(glob.escape(os.getcwd()), name)


def _absolute(name: str) -> str:
    """Of what the name leads to from here; ``..`` stays, which links may change the meaning of."""
    return name if is_url(name) else os.path.join(os.getcwd(), name)
