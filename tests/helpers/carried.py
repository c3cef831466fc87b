"""A clip made again with what it has beside its pictures."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.media import WriteOptions, copy_streams, open_reader, open_writer

__all__ = ["carried_over"]


def carried_over(source: Path, target: Path, streams: Path | None) -> list[str]:
    """Its other streams come from the source itself, or from beside its latents: ``streams``. The warnings."""
    warnings: list[str] = []
    others = source if streams is None else copy_streams(source, streams, warnings)
    with (
        open_reader(source) as reader,
        open_writer(target, reader.info.spec, WriteOptions(audio=others)) as writer,
    ):
        for frame in reader:
            writer.write(frame)
        writer.commit()
    return warnings + writer.warnings
