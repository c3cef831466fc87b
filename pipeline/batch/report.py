"""``report.json`` beside the manifest: what became of the last run's items, failures by name."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from tvae.pipeline.batch.check import VERIFY, CheckStep
from tvae.pipeline.batch.foresight import measured_rate, written_for_read
from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.manifest_lines import check_own, manifest_name
from tvae.pipeline.batch.rates import rate_of, remember
from tvae.pipeline.batch.records import in_store, records_of, send_record
from tvae.pipeline.batch.results import StepResult
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import put_text, write_error
from tvae.pipeline.files.checked import read_json
from tvae.pipeline.jobs.facts import bytes_of
from tvae.pipeline.stores import is_url

__all__ = ["Ended", "check_places", "expect", "keep_rates", "write_failed_list", "write_reports"]

FORMAT = "tvae batch report"
_READ_AGAIN = 16 << 20
"""Bytes of a manifest that is read once more when a run is over."""
MOST_REPORTS = 100
"""That runs which claim items leave in a folder: each process has one, and they come again and again."""
_OF_A_CLAIM = re.compile(r"report-.+-\d+(-\d+-of-\d+)?\.json")
Ended = Literal["complete", "stopped", "interrupted", "error"]
"""*Stopped* after as many failures as were allowed; by an *error* that is no item's."""


def check_places(outputs: Iterable[str], shard: Shard | None, *, claim: bool = False) -> None:
    """UsageError for a file in the place of a manifest or a report that is none, and would be lost. outputs: see
    ``Step.output``."""
    for folder in outputs:
        manifest, report = manifest_name(shard), _place(folder, shard, claim)
        if not is_url(folder):
            check_own(Path(folder) / manifest)
            _check_report(report, str(report))
            continue
        with in_store(folder, manifest) as copy:
            if copy is not None:
                check_own(copy, f"{folder}/{manifest}")
        with in_store(folder, report.name) as copy:
            if copy is not None:
                _check_report(copy, f"{folder}/{report.name}")


def _check_report(path: Path, name: str) -> None:
    try:
        data = read_json(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        data = None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{name} is not a report of tvae; move it, or choose another output")


def write_reports(
    results: Sequence[StepResult], shard: Shard | None, *, claim: bool = False, ended: Ended = "complete"
) -> None:
    """One in each folder of outputs, of the steps that wrote there, and of those that verified what is there.

    A run that was refused or interrupted makes no folder for it. OutputError where it cannot be written, or sent.
    """
    for folder in dict.fromkeys(result.output for result in results if result.operation != VERIFY):
        if ended in ("complete", "stopped") or records_of(folder).is_dir():
            steps = [{**asdict(one), "bytes_per_second": _rate(one, shard)} for one in results if one.output == folder]
            place = _place(folder, shard, claim)
            report = {"format": FORMAT, "name": place.name, "ended": ended, "steps": steps}
            _write(place, json.dumps(report, indent=1) + "\n")
            send_record(folder, place)
            if claim:
                _tidy(place.parent)


def keep_rates(results: Sequence[StepResult], steps: Sequence[Step | CheckStep], shard: Shard | None) -> None:
    """Of the steps of a run that is over, for dry runs of others like them."""
    for result, step in zip(results, steps, strict=False):
        if isinstance(step, Step) and result.done:
            folder = records_of(result.output)
            small = bytes_of(folder / manifest_name(shard)) <= _READ_AGAIN
            ratio = written_for_read(folder, result.operation, shard) if small else None
            remember(step.job, result.read_bytes, result.seconds, ratio)


def expect(results: Sequence[StepResult], steps: Sequence[Step | CheckStep], shard: Shard | None) -> None:
    """Completes what a dry run has found by what is known of its folders, or else of steps like its own."""
    for result, step in zip(results, steps, strict=False):
        folder, like = records_of(result.output), rate_of(step.job) if isinstance(step, Step) else None
        ratio = written_for_read(folder, result.operation, shard)
        rate = measured_rate(_place(result.output, shard, False), result.operation)
        if like is not None:
            ratio = like.written_for_read if ratio is None else ratio
            rate = like.bytes_per_second if rate is None else rate
        result.written_bytes = None if ratio is None else round(ratio * result.read_bytes)
        result.expected_seconds = None if rate is None else result.read_bytes / rate


def _rate(result: StepResult, shard: Shard | None) -> float | None:
    """Of a run that has done nothing it is the one that was known before."""
    if result.read_bytes and result.seconds > 0:
        return result.read_bytes / result.seconds
    return measured_rate(_place(result.output, shard, False), result.operation)


def write_failed_list(path: Path, results: Sequence[StepResult]) -> None:
    """The sources that failed, one a line, as ``tvae encode -a`` and a step's ``list`` read them."""
    names = dict.fromkeys(failure["source"] for result in results for failure in result.failures)
    _write(path, "".join(f"{name if is_url(name) else _in_a_line(str(Path(name).absolute()))}\n" for name in names))


def _in_a_line(name: str) -> str:
    """A pattern for a name with ends of lines, which a list cannot have."""
    return glob.escape(name).replace("\n", "?") if "\n" in name else name


def _tidy(folder: Path) -> None:
    """Removes the oldest reports of runs that claimed items, where there are more than are kept. One is ours if it has
    the name that it was written under; whatever else has such a name is somebody's, and stays."""
    with suppress(OSError):
        reports = [path for path in folder.iterdir() if _OF_A_CLAIM.fullmatch(path.name) and not path.is_symlink()]
        if len(reports) <= MOST_REPORTS:
            return
        ours = sorted((path for path in reports if _is_as_written(path)), key=lambda path: path.stat().st_mtime_ns)
        for path in ours[: max(0, len(ours) - MOST_REPORTS)]:
            path.unlink()


def _is_as_written(path: Path) -> bool:
    try:
        data = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and (data.get("format"), data.get("name")) == (FORMAT, path.name)


def _place(folder: str, shard: Shard | None, claim: bool) -> Path:
    """Runs that claim items have one each."""
    stem = f"report-{platform.node()}-{os.getpid()}" if claim else "report"
    return records_of(folder) / (f"{stem}.json" if shard is None else shard.name(stem, ".json"))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_text(path, text)
    except OSError as error:
        raise write_error(path, error) from error
