"""Encode and decode files with one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, run_job
from tvae.pipeline.jobs.job import Operation

__all__ = ["decode", "encode"]

Names = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One name, or several: files, folders and patterns."""


def encode(inputs: Names, output: str | os.PathLike[str] | None = None, **options: Any) -> list[Path]:
    """Images and videos to latents, as ``tvae encode`` does it. Returns the outputs, in the order of the inputs.

    options: fields of ``tvae.pipeline.jobs.Job`` (``vae``, ``size``, ``posterior``, ``vram``, …), and ``on_event``, a
    function that is given every event. What is there already and still right is not made again, and is among the
    outputs. Raises UsageError before any work; else, when all other items are done, the error of the first that failed.
    """
    return _run("encode", inputs, output, options)


def decode(inputs: Names, output: str | os.PathLike[str] | None = None, **options: Any) -> list[Path]:
    """Latents to images and videos, as ``tvae decode`` does it. Returns and raises as ``encode`` does.

    options: fields of ``tvae.pipeline.jobs.Job`` (``crf``, ``codec``, ``vram``, …); for latents of other programs
    ``vae`` and ``latents_space``.
    """
    return _run("decode", inputs, output, options)


def _run(
    operation: Operation, inputs: Names, output: str | os.PathLike[str] | None, options: dict[str, Any]
) -> list[Path]:
    heard: Callable[[Event], None] = options.pop("on_event", lambda _event: None)
    names = [inputs] if isinstance(inputs, str | os.PathLike) else [*inputs]
    job = _job(
        operation, tuple(os.fspath(name) for name in names), None if output is None else os.fspath(output), options
    )
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


def _job(operation: Operation, inputs: tuple[str, ...], output: str | None, options: dict[str, Any]) -> Job:
    """Raises UsageError for a name that is no field of a job."""
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    try:
        return replace(Job(operation, inputs, output), **plain)
    except TypeError as error:
        raise UsageError(f"{operation}(): {error}") from None
