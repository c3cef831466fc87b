"""Encode and decode files with one call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

from tvae.pipeline.doors.options import Options, checked
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, run_job
from tvae.pipeline.jobs.job import Operation

__all__ = ["decode", "encode"]

Names = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One name, or several: files, folders and patterns."""


def encode(inputs: Names, output: str | os.PathLike[str] | None = None, **options: Unpack[Options]) -> list[Path]:
    """Images and videos to latents, as ``tvae encode`` does it. Returns the outputs, in the order of the inputs.

    options: fields of ``tvae.pipeline.jobs.Job``, such as ``vae``, ``size``, ``posterior`` and ``vram``, and
    ``on_event``, a function that is given every event; ``tvae.pipeline.doors.options`` lists them. What is there
    already and still right is not made again, and is among the outputs. Raises UsageError before any work; else, when
    all other items are done, the error of the first that failed.
    """
    return _run("encode", inputs, output, options)


def decode(inputs: Names, output: str | os.PathLike[str] | None = None, **options: Unpack[Options]) -> list[Path]:
    """Latents to images and videos, as ``tvae decode`` does it. Returns and raises as ``encode`` does.

    options: as those of ``encode``, such as ``crf``, ``codec`` and ``vram``; for latents of other programs ``vae`` and
    ``latents_space``.
    """
    return _run("decode", inputs, output, options)


def _run(operation: Operation, inputs: Names, output: str | os.PathLike[str] | None, options: Options) -> list[Path]:
    fields = checked(operation, options)
    heard = fields.pop("on_event", lambda _event: None)
    place = None if output is None else _names(operation, output)[0]
    job = Job(operation, _names(operation, inputs), place, **fields)
    ends: dict[int, ItemDone | ItemSkipped | ItemFailed] = {}

    def hear(event: Event) -> None:
        if isinstance(event, ItemDone | ItemSkipped | ItemFailed):
            ends[event.index] = event
        heard(event)

    run_job(job, hear)
    failed = [end for _, end in sorted(ends.items()) if isinstance(end, ItemFailed)]
    if failed:
        raise failed[0].cause or InputError(failed[0].error)
    return [end.output for _, end in sorted(ends.items()) if not isinstance(end, ItemFailed)]


def _names(operation: Operation, inputs: Names) -> tuple[str, ...]:
    """Raises UsageError for what are no names."""
    try:
        return tuple(os.fspath(one) for one in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs))
    except TypeError:
        raise UsageError(f"{operation}() wants the names of files, not {type(inputs).__name__}") from None
