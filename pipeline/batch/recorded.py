"""What a step's line in the manifest says of an output: by its maker's word, or, where that tells nothing, as it was
read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvae.pipeline.batch.facts import facts_of, whole_name
from tvae.pipeline.batch.foresight import bytes_of
from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.jobs.events import ItemDone, ItemSkipped

__all__ = ["record"]


def record(
    manifest: Manifest,
    event: ItemDone | ItemSkipped,
    operation: str,
    facts: Mapping[str, Any],
    notices: Sequence[str],
) -> None:
    """Adds the line of an item that has ended. facts: of how it was done; notices: that were told of it."""
    output, made = event.output, event.made if isinstance(event, ItemDone) else None
    said = {"operation": operation, "source": whole_name(event.input), **facts}
    told: dict[str, Any] = {"warnings": [*notices]} if notices else {}
    if made is not None:
        manifest.done(output, {**said, **made.said, **told}, made.file)
        return
    told |= {"all_bytes": bytes_of(output)} if output.is_dir() else {}
    manifest.done(output, {**said, **facts_of(output), **told})
