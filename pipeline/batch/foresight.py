"""What a dry run expects of a step, by what was measured in its folder: never more than is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.manifest_lines import manifest_name, read_manifest
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.files.checked import read_json

__all__ = ["measured_rate", "written_for_read"]


def written_for_read(folder: Path, operation: str, shard: Shard | None) -> float | None:
    """Bytes of outputs for each byte of their sources, by the manifest of a folder; None where no line tells."""
    read = written = 0
    try:
        lines = read_manifest(folder / manifest_name(shard))
    except OSError:
        return None
    for line in lines.values():
        source, size = line.get("source_bytes"), line.get("all_bytes", line.get("bytes"))
        if line.get("operation") == operation and isinstance(source, int) and isinstance(size, int) and source > 0:
            read += source
            written += size
    return written / read if read else None


def measured_rate(report: Path, operation: str) -> float | None:
    """Bytes of sources that a step did a second, by a report; None where it does not tell."""
    try:
        data = read_json(report)
    except (OSError, ValueError):
        return None
    steps = data.get("steps") if isinstance(data, Mapping) else None
    for step in steps if isinstance(steps, list) else []:
        rate: Any = step.get("bytes_per_second") if isinstance(step, Mapping) else None
        if rate is not None and step.get("operation") == operation and isinstance(rate, (int, float)) and rate > 0:
            return float(rate)
    return None
