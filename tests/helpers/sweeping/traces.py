"""What a trace of PyTorch's allocator tells: the peak, and who had the memory then."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["told"]

_OURS = ("/pipeline/", "/kernels/", "/tests/")
_DEEPEST = 5
"""Lines of ours that are told of each place."""
_PARTS = 9


def told(events: Sequence[dict[str, Any]]) -> list[str]:
    """The peak of a trace of the allocator, and what was alive at it of what the trace has seen taken."""
    alive, size, most, at = dict[int, dict[str, Any]](), 0, 0, 0
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            size += event["size"]
        elif event["action"] == "free_completed":
            size -= event["size"]
            alive.pop(event["addr"], None)
        if size > most:
            most, at = size, number + 1
    alive.clear()
    for event in itertools.islice(events, at):
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    sizes, counts = Counter[str](), Counter[str]()
    for event in alive.values():
        place = lines_of(event.get("frames", ()))
        sizes[place] += event["size"]
        counts[place] += 1
    parts = [f"    {part / 2**20:9.1f} MiB x{counts[place]} {place}" for place, part in sizes.most_common(_PARTS)]
    return [f"  peak +{most >> 20} MiB, at event {at} of {len(events)}", *parts]


def lines_of(frames: Sequence[dict[str, Any]]) -> str:
    """The innermost lines of ours in a stack."""
    ours = list[str]()
    for frame in frames:
        name = str(frame["filename"]).replace("\\", "/")
        found = next(
            (name[name.rfind(part) :] for part in ("/pipeline/", "/kernels/", "/tests/") if part in name), None
        )
        if found is not None and "site-packages" not in name:
            ours.append(f"{found[1:]}:{frame['line']}")
        if len(ours) == _DEEPEST:
            break
    return " < ".join(ours) or "elsewhere"
