"""What a run says of each item, or, of a dry run, what it would say: to be compared."""

from __future__ import annotations

import re

from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, ItemSkipped

__all__ = ["outcomes"]


def outcomes(events: list[Event]) -> dict[str, tuple[str, ...]]:
    """By the name of the input: made, skipped or failed, and the output or why."""
    found: dict[str, tuple[str, ...]] = {}
    for event in events:
        match event:
            case ItemPlanned() | ItemDone():
                found[event.input.name] = "made", str(event.output)
            case ItemSkipped():
                found[event.input.name] = "skipped", str(event.output), event.reason
            case ItemFailed():
                found[event.input.name] = "failed", re.sub(r"[\d.]+ megapixels", "", event.error)  # free memory
    return found
