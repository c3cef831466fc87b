"""``report.json`` beside the manifest: what became of the last run's items, failures by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tvae.pipeline.batch.run import StepResult
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.files.atomic import replacing, write_error

__all__ = ["write_failed_list", "write_reports"]


def write_reports(results: Sequence[StepResult], shard: Shard | None) -> None:
    """One in each folder of outputs, of the steps that wrote there. OutputError where it cannot be written."""
    for folder in dict.fromkeys(result.output for result in results):
        path = Path(folder) / ("report.json" if shard is None else shard.name("report", ".json"))
        steps = [asdict(result) for result in results if result.output == folder]
        _write(path, json.dumps({"steps": steps}, indent=1) + "\n")


def write_failed_list(path: Path, results: Sequence[StepResult]) -> None:
    """The sources that failed, one a line, as ``tvae encode -a`` and a step's ``list`` read them."""
    names = dict.fromkeys(failure["source"] for result in results for failure in result.failures)
    _write(path, "".join(f"{Path(name).absolute()}\n" for name in names))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise write_error(path, error) from error
