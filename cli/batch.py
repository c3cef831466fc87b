"""``tvae batch``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from tvae.cli import batch_options as of_batch
from tvae.cli import options
from tvae.cli.exit_codes import ExitCode, Terminated
from tvae.cli.reporting import printable, reporting, say, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tvae.cli.metrics import MetricsServer
    from tvae.pipeline.batch.report import Ended
    from tvae.pipeline.batch.results import StepResult
    from tvae.pipeline.batch.shards import Shard
    from tvae.pipeline.files.own_file import OwnFile

__all__ = ["batch"]


def batch(
    job_file: of_batch.JobFile = None,
    dry_run: options.DryRun = False,
    print_config: of_batch.PrintConfig = False,
    schema: of_batch.Schema = False,
    verify: of_batch.Verify = False,
    retries: of_batch.Retries = 0,
    fail_fast: of_batch.FailFast = False,
    max_failures: of_batch.MaxFailures = None,
    failed_list: of_batch.FailedList = None,
    log: of_batch.Log = None,
    metrics_port: of_batch.MetricsPort = None,
    shard: of_batch.ShardText = None,
    claim: of_batch.Claim = False,
    engine: of_batch.Engine = None,
    address: of_batch.Address = None,
    workers: of_batch.WorkerCount = None,
    cpus_per_worker: of_batch.WorkerCpus = None,
    gpus_per_worker: of_batch.WorkerGpus = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Do a job from a file: encode, decode, roundtrip, cache and verify, in steps.

    A step: operation = "encode", inputs = ["photos"], output = "latents", and the command's options as keys.
    Several are an array of tables, step (see pipeline/batch/README.md); options before them are for all.
    Each folder of outputs gets manifest.jsonl, a line for each output, and report.json.
    A job that is run again skips what is done.
    """
    with reporting(verbose, json, resumable=True):
        import os
        from contextlib import ExitStack, nullcontext
        from dataclasses import asdict, replace
        from pathlib import Path

        from tvae.cli.log_file import LogFile
        from tvae.cli.render import Display
        from tvae.cli.table import emit
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.settings.collector import collecting_later

        if schema:
            from json import dumps

            from tvae.pipeline.batch.text import schema as schema_of_jobs

            tell(dumps(schema_of_jobs(), indent=1))
            return
        if job_file is None:
            raise UsageError("name a job file (see tvae batch --help)")
        if fail_fast and max_failures is not None:
            raise UsageError("--fail-fast and --max-failures cannot be used together")
        of_ray = (address, workers, cpus_per_worker, gpus_per_worker)
        if engine is None and any(each is not None for each in of_ray):
            raise UsageError("--address and what workers have are for --engine ray")
        if engine is not None and claim:
            raise UsageError("--claim and --engine ray cannot be used together; the cluster shares the items itself")

        from tvae.pipeline.batch.check import VERIFY, check_of
        from tvae.pipeline.batch.job_file import Step, read_job_file
        from tvae.pipeline.batch.report import (
            check_named,
            check_places,
            expect,
            keep_rates,
            write_failed_list,
            write_reports,
        )
        from tvae.pipeline.batch.run import Options, check_shared, run_batch
        from tvae.pipeline.batch.shards import shard_here, shard_of
        from tvae.pipeline.jobs import Event, RunStarted

        steps = read_job_file(Path(job_file))
        if verify:
            steps.append(check_of({step.output: step.said_output for step in steps if isinstance(step, Step)}))
        if print_config:
            from tvae.pipeline.batch.text import as_toml

            tell(as_toml([step.said for step in steps]).rstrip("\n"))
            return
        part = shard_here(os.environ) if shard is None else shard_of(shard)
        outputs = dict.fromkeys(step.output for step in steps if isinstance(step, Step))
        wanted = Options(dry_run, retries, 1 if fail_fast else max_failures, part, claim)
        check_shared(steps, wanted)
        named: dict[OwnFile, str | None] = {"failed list": failed_list, "log": log}
        files = {kind: Path(name) for kind, name in named.items() if name is not None}
        check_named(files, Path(job_file), steps, part, claim)
        if not dry_run:
            check_places(outputs, part, claim=claim)
        results: list[StepResult] = []

        def report(ended: Ended) -> None:
            if dry_run:
                return
            write_reports(results, part, claim=claim, ended=ended)
            keep_rates(results, steps, part)
            if failed_list is not None:
                write_failed_list(Path(failed_list), results)

        with (
            _reporting_early_ends(report),
            ExitStack() as cluster,
            collecting_later() as collecting,
            nullcontext() if log is None or dry_run else LogFile(Path(log)) as file,
            nullcontext() if metrics_port is None else _served(metrics_port) as metrics,
            Display(as_json=json, quiet=quiet, verbose=verbose, progress=not no_progress) as display,
        ):

            def hear(event: Event) -> None:
                display.show(event)
                if isinstance(event, RunStarted):
                    collecting()
                if file is not None:
                    file.tell(event)
                if metrics is not None:
                    metrics.tell(event)

            if engine is not None and not dry_run:
                from tvae.pipeline.batch.on_ray.engine import on_ray

                elsewhere = cluster.enter_context(on_ray(address or "auto", workers, cpus_per_worker, gpus_per_worker))
                wanted = replace(wanted, elsewhere=elsewhere)
            run_batch(steps, wanted, hear, results=results)
        failed = sum(result.failed for result in results)
        stopped = wanted.most_failures is not None and failed >= wanted.most_failures
        report("stopped" if stopped else "complete")
        if dry_run:
            expect(results, steps, part)
        if json:
            emit("batch_done", {"steps": [asdict(result) for result in results]}, as_json=True)
        elif not quiet and (dry_run or len(steps) > 1):
            _tell_table(results, part)
        if stopped:
            say(f"stopped after {failed} failed; complete results stay; run the same command to continue")
        if any(result.failed for result in results if result.operation == VERIFY):
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)
        if failed:
            raise typer.Exit(ExitCode.SOME_FAILED)


def _served(port: int) -> MetricsServer:
    from tvae.cli.metrics import MetricsServer  # which imports an HTTP server

    return MetricsServer(port)


@contextmanager
def _reporting_early_ends(report: Callable[[Ended], None]) -> Iterator[None]:
    """Reports a run that an exception ends, and lets that out; that a report cannot be written is told beside it."""
    from tvae.pipeline.errors import OutputError

    try:
        yield
    except BaseException as error:
        try:
            report("interrupted" if isinstance(error, (KeyboardInterrupt, Terminated)) else "error")
        except OutputError as failure:
            say(f"warning: {failure}")
        raise


def _tell_table(results: Sequence[StepResult], shard: Shard | None) -> None:
    """A line for each step, on stdout."""
    if shard is not None:
        tell(f"part {shard.number} of {shard.count}")
    for number, result in enumerate(results, 1):
        counts = {name: getattr(result, name) for name in ("done", "planned", "skipped", "stale", "failed", "retried")}
        said = [f"{count} {word}" for word, count in counts.items() if count]
        said += [*_expected(result)] if result.planned else []
        said += ["the rest is what an earlier step makes"] if result.waits and result.operation != "verify" else []
        told = ", ".join(said) or "nothing to do"
        took = f"{'looked at in ' if result.planned else ''}{result.seconds:.1f} s"
        where = "of" if result.operation == "verify" else "to"
        tell(printable(f"step {number}, {result.operation} {where} {result.output}: {told}, {took}"))


def _expected(result: StepResult) -> Iterator[str]:
    """Of what a dry run has planned: bytes and time, as far as they are known."""
    from tvae.pipeline.engine.plan.report import size_text

    written, seconds = result.written_bytes, result.expected_seconds
    yield f"{size_text(result.read_bytes)} to read"
    yield "bytes to write unknown" if written is None else f"about {size_text(written)} to write"
    yield "time unknown" if seconds is None else f"about {seconds:.1f} s"
