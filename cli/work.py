"""What encode, decode and roundtrip have in common once their flags are a Job."""

from __future__ import annotations

import typer

from tvae.cli.exit_codes import ExitCode
from tvae.cli.render import Display
from tvae.cli.reporting import say, say_builtin, tell
from tvae.pipeline.jobs import Job, run_job
from tvae.pipeline.jobs.cache_names import advice

__all__ = ["carry_out", "tell_job"]


def carry_out(job: Job, *, as_json: bool, quiet: bool, verbose: bool, progress: bool) -> None:
    """Runs the job and shows it; ``typer.Exit`` says whether items failed."""
    with Display(as_json=as_json, quiet=quiet, verbose=verbose, progress=progress) as display:
        finished = run_job(job, display.show)
    if finished.done and job.vae is None and job.operation != "decode" and not (quiet or as_json):
        say_builtin()
    if finished.done and not (quiet or as_json):
        for line in advice(job, display.output):
            say(line)
    raise typer.Exit(ExitCode.SOME_FAILED if finished.failed else ExitCode.DONE)


def tell_job(job: Job) -> None:
    """The job file by which ``tvae batch`` does the same, on stdout. Raises UsageError where there is none."""
    from tvae.pipeline.batch.said import said_of
    from tvae.pipeline.batch.text import as_toml

    tell(as_toml([said_of(job)]).rstrip("\n"))
