"""``tvae verify``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tvae.cli import options
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import printable, reporting, tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tvae.pipeline.latents.verify import MadeBy, Verdict

__all__ = ["verify"]

Paths = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Latents, or folders of them or of caches for trainers.")
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
    verbose: options.Verbose = False,
) -> None:
    """Read latents whole and compare them with their checksums.

    Of caches for trainers: all files that tvae wrote, by its records beside them.
    Prints those that are not fine: damaged, incomplete, stale (source or VAE changed), or without checksums.
    The exit code is 4 if any are damaged or incomplete.
    """
    with reporting(verbose, json):
        from pathlib import Path

        from tvae.cli.table import emit
        from tvae.pipeline.caches.verify import recorded_files, records_below, verify_record
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.latents.verify import found_below, verify_latents

        for name in paths:
            if not Path(name).exists():
                raise UsageError(f"{name} does not exist")
        if source is not None and not Path(source).is_dir():
            raise UsageError(f"the folder of --source, {source}, does not exist")
        made_by = _made_by(vae, allow_pickle) if vae is not None else None
        counts: Counter[str] = Counter()

        def told(verdict: Verdict) -> None:
            counts[verdict.state] += 1
            if json:
                facts = {"path": str(verdict.path), "state": verdict.state, "reason": verdict.reason}
                emit("verified", facts, as_json=True)
            elif verdict.state != "fine":
                tell(printable(f"{verdict.path}: {verdict.state}: {verdict.reason}"))

        for name in paths:
            known = recorded_files(Path(name))
            for path in found_below(Path(name)):
                if path in known:
                    continue
                below = path.parent.relative_to(name) if path != Path(name) and Path(name).is_dir() else Path()
                told(verify_latents(path, next(_source_of(path, source, below), None), made_by))
            for root, record in records_below(Path(name)):
                told(verify_record(root, record, None if source is None else Path(source), made_by))
        if not json:
            tell(", ".join(f"{count} {state}" for state, count in counts.items()) or "no latents here")
        if counts["damaged"] or counts["incomplete"]:
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def _made_by(vae: str, allow_pickle: bool) -> MadeBy:
    from tvae.pipeline.latents.verify import MadeBy
    from tvae.pipeline.models.load import locate_vae, values_of
    from tvae.pipeline.models.space import space_of

    found = locate_vae(vae, allow_pickle=allow_pickle)
    return MadeBy(found.class_name, found.weights_sha256, values_of(found), space_of(found).to_json())


def _source_of(path: Path, folder: str | None, below: Path) -> Iterator[Path]:
    """The file that latents name as their source, in the folder of sources; none for latents that cannot be read."""
    from pathlib import Path

    from tvae.pipeline.errors import InputError
    from tvae.pipeline.latents import source_of

    if folder is None:
        return
    try:
        yield Path(folder) / below / Path(source_of(path)[0]).name
    except InputError:  # which verify_latents tells
        return
