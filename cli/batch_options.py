"""The options of ``tvae batch`` alone."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = [
    "Address",
    "Claim",
    "Engine",
    "FailFast",
    "FailedList",
    "JobFile",
    "Log",
    "MaxFailures",
    "MetricsPort",
    "PrintConfig",
    "Retries",
    "Schema",
    "ShardText",
    "Verify",
    "WorkerCount",
    "WorkerCpus",
    "WorkerGpus",
]

_ON_RAY = "On a cluster"

JobFile = Annotated[
    str | None, typer.Argument(metavar="JOB.toml", help="What is to be done, step by step.", show_default=False)
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print each step with the file's defaults in it, and do nothing.")
]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of job files, for editors.")]
Retries = Annotated[
    int,
    typer.Option(
        "--retries", min=0, max=20, help="Try an item again that failed for the system or for memory, after 1, 2, 4… s."
    ),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="At the end read all that the job has written whole, as a step that verifies does."),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Begin nothing else after the first failure.")]
MaxFailures = Annotated[
    int | None, typer.Option("--max-failures", min=1, help="Begin nothing else after so many.", show_default=False)
]
FailedList = Annotated[
    str | None,
    typer.Option(
        "--failed-list", metavar="FILE", help="Write the sources that failed, one a line.", show_default=False
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log", metavar="FILE", help="Append a line with its time for each event to a file.", show_default=False
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        min=1,
        max=65535,
        help="Serve counts for Prometheus at http://127.0.0.1:N/metrics while the batch runs.",
        show_default=False,
    ),
]
ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Do one of N parts of the items, the same whatever else there is.",
        show_default="what Slurm's job array or torchrun says, or all",
    ),
]
Claim = Annotated[
    bool,
    typer.Option(
        "--claim",
        help="Share the items with other processes that run the same job on one folder: each item is taken by a lock "
        "file, which ends with its process.",
    ),
]
Engine = Annotated[
    Literal["ray"] | None,
    typer.Option(
        "--engine",
        help="Do the items on a Ray cluster whose machines share the files; see --address.",
        show_default="this machine alone",
        rich_help_panel=_ON_RAY,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT|auto|local",
        help="The cluster: auto is the one that this machine is a part of, local one that is started for the run.",
        show_default="auto",
        rich_help_panel=_ON_RAY,
    ),
]
WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="How many; those that find no place wait, for which a cluster may grow.",
        show_default="what the nodes take, and more as nodes come",
        rich_help_panel=_ON_RAY,
    ),
]
WorkerCpus = Annotated[
    float | None,
    typer.Option(
        "--cpus-per-worker",
        min=0,
        help="What Ray keeps for each.",
        show_default="1 beside a GPU, else all of a node",
        rich_help_panel=_ON_RAY,
    ),
]
WorkerGpus = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-worker",
        min=0,
        help="0.5: two share one.",
        show_default="1 where the cluster has any, else 0",
        rich_help_panel=_ON_RAY,
    ),
]
