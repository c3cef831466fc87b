"""Memory for scaling a picture: a narrow one that is scaled to fill a size becomes very long before it is cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.caches.spec import Filter, Size
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.memory.amount import parse_size

__all__ = ["check_scaling", "reading_memory", "room_to_scale"]

_TAKEN: dict[Filter, int] = {"area": 12, "linear": 4, "lanczos": 10, "bicubic": 10, "cubic": 20}
"""Bytes of a pixel of the scaled picture, at the peak: measured as the resident memory of a process."""
_ACROSS = 4
"""Of a pixel that has its new width, and its old height yet."""
_LARGE = 256 << 20
"""Bytes from which on one picture at a time is scaled: each of several that fit may not fit beside the others."""

_turn = threading.Lock()


def check_scaling(path: Path, source: Size, size: Size, kind: Filter, job: Job) -> None:
    """InputError where there is no memory to scale a picture of ``source`` size to ``size``, each (width, height)."""
    taken, memory = _bytes(source, size, kind), reading_memory(job)
    if memory is not None and taken > memory:
        raise InputError(
            f"{path}: scaling it to {size[0]}x{size[1]} pixels takes {taken >> 20} MiB, and "
            f"{max(0, memory) >> 20} MiB are free; crop it, ask for a smaller --size, or name a larger --vram where "
            "one is named"
        )


@contextmanager
def room_to_scale(path: Path, source: Size, size: Size, kind: Filter, job: Job) -> Iterator[None]:
    """For as long as it is scaled. Large ones take turns. Raises as ``check_scaling``."""
    if _bytes(source, size, kind) <= _LARGE:
        yield
        return
    with _turn:
        check_scaling(path, source, size, kind, job)
        yield


def reading_memory(job: Job) -> int | None:
    """Bytes that reading may take now; None where the system does not tell."""
    from tvae.pipeline.device import pick_device
    from tvae.pipeline.memory.limits import reading_room

    return reading_room(pick_device(job.device), None if job.vram is None else parse_size(job.vram))


def _bytes(source: Size, size: Size, kind: Filter) -> int:
    return size[0] * (size[1] * _TAKEN[kind] + source[1] * _ACROSS)
