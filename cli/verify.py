"""``tvae verify``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tvae.cli import options
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import printable, reporting, tell
from tvae.cli.status_line import StatusLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tvae.pipeline.latents.verify import Verdict

__all__ = ["verify"]

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Latents, or folders of them or of caches for trainers; URLs of latents."),
]
Sources = Annotated[
    str | None,
    typer.Option("--source", metavar="FOLDER", help="Folder of the sources: say which of them have changed."),
]
OfVae = Annotated[
    str | None,
    typer.Option("--vae", metavar="ID|PATH|builtin", help="Say which latents another VAE has made."),
]


def verify(
    paths: Paths,
    source: Sources = None,
    vae: OfVae = None,
    allow_pickle: options.AllowPickle = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Read latents whole and compare them with their checksums.

    Of caches for trainers and of shards: all files that tvae wrote, by its records beside them.
    Of a folder that tvae batch wrote to: everything that its manifest has a line of.
    Prints those that are not fine: damaged, incomplete, stale (source or VAE changed), or without checksums; with -q
    nothing else.
    The exit code is 4 if any are damaged or incomplete, else 3 if any could not be read.
    """
    with reporting(verbose, json), StatusLine(shown=not (json or quiet or no_progress)) as line:
        from itertools import chain
        from pathlib import Path

        from tvae.cli.table import emit
        from tvae.pipeline.batch.verdicts import made_by, once, verdicts, wants_all
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.jobs.remote.refusals import refuse_urls
        from tvae.pipeline.stores import is_url

        if source is not None:
            refuse_urls([*paths, source], "tvae verify --source")
        for name in paths:
            if not is_url(name) and not Path(name).exists():
                raise UsageError(f"{name} does not exist")
        if source is not None and not Path(source).is_dir():
            raise UsageError(f"the folder of --source, {source}, does not exist")
        of = made_by(vae, allow_pickle) if vae is not None else None
        counts: Counter[str] = Counter()

        def told(verdict: Verdict) -> None:
            counts[verdict.state] += 1
            if json:
                facts = {"path": str(verdict.path), "state": verdict.state, "reason": verdict.reason}
                emit("verified", facts, as_json=True)
            elif verdict.state != "fine":
                line.clear()
                tell(printable(f"{verdict.path}: {verdict.state}: {verdict.reason}"))

        found: list[Iterator[Verdict]] = []
        wanted = once() if source is None else wants_all  # a source is looked for by the folder that was named
        for name in paths:
            if is_url(name):
                from tvae.pipeline.batch.looked_at import remote_verdicts

                found.append(remote_verdicts(name, of, wanted))
            else:
                found.append(verdicts(Path(name), None if source is None else Path(source), of, wanted))
        for verdict in chain.from_iterable(found):
            told(verdict)
            line.often(f"{_counted(counts)}: {verdict.path}")
        line.clear()
        if not (json or quiet):
            tell(_counted(counts) or "no latents here")
        if counts["damaged"] or counts["incomplete"]:
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)
        if counts["unreadable"]:
            raise typer.Exit(ExitCode.SOME_FAILED)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())
