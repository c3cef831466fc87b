"""Which decoder an image's latents come from, where its trainer has one of its own: a part of their record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvae.pipeline.caches import Trainer
from tvae.pipeline.media.decoders import decodes_file, version

__all__ = ["with_decoder"]

_KEY = "decoder"


def with_decoder(
    options: dict[str, Any], trainer: Trainer, source: Path, older: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a record, and the decoder with its version where that is not Pillow. `OSError`.

    older: of the record that there is. Where the decoder is not installed, what was made with it stays good: what would
    take its place is farther from the trainer's own.
    """
    if trainer.decoder is None or not decodes_file(source):
        return options
    if (installed := version()) is not None:
        return options | {_KEY: f"{trainer.decoder} {installed}"}
    return options | ({_KEY: older[_KEY]} if older is not None and _KEY in older else {})
