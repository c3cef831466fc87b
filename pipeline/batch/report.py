"""``report.json`` beside the manifest: what became of the last run's items, failures by name."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from tvae.pipeline.batch.check import VERIFY, CheckStep
from tvae.pipeline.batch.foresight import measured_rate, written_for_read
from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.manifest_lines import manifest_name
from tvae.pipeline.batch.rates import rate_of, remember
from tvae.pipeline.batch.records import in_store, records_of, send_record
from tvae.pipeline.batch.results import StepResult
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.files.atomic import put_text, write_error
from tvae.pipeline.files.checked import read_json
from tvae.pipeline.files.own_file import MARKS, OwnFile, check_own
from tvae.pipeline.jobs.archives import is_archive
from tvae.pipeline.jobs.facts import bytes_of
from tvae.pipeline.latents import IMAGE_SUFFIX, VIDEO_SUFFIX
from tvae.pipeline.latents.foreign import SUFFIXES
from tvae.pipeline.media.formats import listed
from tvae.pipeline.stores import is_url

__all__ = ["Ended", "check_named", "check_places", "expect", "keep_rates", "write_failed_list", "write_reports"]

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
        for kind, path in _records(folder, shard, claim).items():
            if not is_url(folder):
                _check_own(path, kind)
                continue
            with in_store(folder, path.name) as copy:
                if copy is not None:
                    check_own(copy, kind, f"{folder}/{path.name}")


def check_named(
    files: Mapping[OwnFile, Path], job_file: Path, steps: Sequence[Step | CheckStep], shard: Shard | None, claim: bool
) -> None:
    """Raise UsageError for a log or a failed list whose path is that of another file of the job, may be that of an
    input or output, or is that of a file which is not ours."""
    taken = [str(job_file)]
    for step in steps:
        taken += step.inputs if isinstance(step, CheckStep) else _files_of(step, job_file.parent)
        if isinstance(step, Step) and not is_url(step.output):
            taken += [step.output, *map(str, _records(step.output, shard, claim).values())]
    for kind, path in files.items():
        others = [*taken, *(str(other) for other in files.values() if other is not path)]
        name = os.path.normcase(path.name)
        if any(os.path.normcase(os.path.basename(other)) == name and _same(path, other) for other in others):
            raise UsageError(f"the {kind} {path} is another file of the job; name another")
        media = listed(path.suffix) or is_archive(path.name)
        if media or path.suffix.lower() in (IMAGE_SUFFIX, VIDEO_SUFFIX, *SUFFIXES):
            raise UsageError(f"the {kind} {path} is called like an input or an output; name another")
        _check_own(path, kind)


def _check_own(path: Path, kind: OwnFile) -> None:
    try:
        check_own(path, kind)
    except OSError as error:
        raise UsageError(
            f"cannot write the {kind} {path}: {error.strerror or error}; move it, or name another"
        ) from error


def _files_of(step: Step, folder: Path) -> Iterator[str]:
    """What a step reads, by name: inputs, and lists of them, which are looked up from the job file's folder."""
    yield from step.job.inputs
    yield from (one.name for one in step.job.listed)
    for key in ("list", "jsonl"):
        names = step.said.get(key, [])
        for name in [names] if isinstance(names, str) else names:
            yield str(folder / Path(name).expanduser())


def _same(path: Path, other: str) -> bool:
    return os.path.normcase(os.path.realpath(path)) == os.path.normcase(os.path.realpath(other))


def _records(folder: str, shard: Shard | None, claim: bool) -> dict[OwnFile, Path]:
    return {"manifest": records_of(folder) / manifest_name(shard), "report": _place(folder, shard, claim)}


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
            text = json.dumps(report, indent=1).replace("\n ", "", 1)  # its first line says what it is
            _write(place, "report", text + "\n")
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
    lines = (name if is_url(name) else _in_a_line(str(Path(name).absolute())) for name in names)
    _write(path, "failed list", "".join(f"{line}\n" for line in (MARKS["failed list"], *lines)))


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


def _write(path: Path, kind: OwnFile, text: str) -> None:
    try:
        check_own(path, kind)  # again: it may have come to be there during the run
        path.parent.mkdir(parents=True, exist_ok=True)
        put_text(path, text)
    except UsageError as error:
        raise OutputError(str(error)) from error
    except OSError as error:
        raise write_error(path, error) from error
