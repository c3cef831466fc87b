"""What a step's line in the manifest says of an output: by its maker's word, or, where that tells nothing, as it was
read again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.jobs.events import ItemDone, ItemSkipped
from tvae.pipeline.stores import RemotePath

__all__ = ["UnreadOutput", "record", "whole_name"]


class UnreadOutput(OutputError):
    """An output cannot be read again, so that nothing can be said of it: it has gone since, or what is there is a
    folder or a pipe of the user's."""


def record(
    manifest: Manifest,
    event: ItemDone | ItemSkipped,
    operation: str,
    facts: Mapping[str, Any],
    notices: Sequence[str],
) -> None:
    """Adds the line of an item that has ended. facts: of how it was done; notices: that were told of it. UnreadOutput
    where the output cannot be read again, OutputError where the line cannot be written."""
    output, made = event.output, event.made if isinstance(event, ItemDone) else None
    if made is None:
        try:
            made = manifest.made(output)
        except (OSError, InputError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UnreadOutput(f"cannot read {output} again: {why}") from error
    told: dict[str, Any] = {"warnings": [*notices]} if notices else {}
    said = {"operation": operation, "source": whole_name(event.input), **facts}
    manifest.done(output, {**said, **made.said, **told}, made.file)


def whole_name(source: Path) -> str:
    """A source's path, whatever folder one is in, or its URL."""
    name = str(source)
    if isinstance(source, RemotePath) or os.path.isabs(name):
        return name
    return os.path.join(os.getcwd(), name) if name != os.curdir else os.getcwd()  # in a fifth of Path's time
