"""``tvae compare``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvae.cli import options
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import printable, reporting, say, tell
from tvae.cli.status_line import StatusLine

if TYPE_CHECKING:
    from tvae.pipeline.comparison import Comparison, Pair
    from tvae.pipeline.media.sandbox import Sandbox

__all__ = ["compare"]

First = Annotated[
    str,
    typer.Argument(
        metavar="FIRST", help="The reference: latents, tensors of another program, an image, a video, or a folder."
    ),
]
Second = Annotated[str, typer.Argument(metavar="SECOND", help="What is compared with it: of the same kind and shape.")]
Within = Annotated[
    float | None,
    typer.Option("--within", metavar="X", min=0, help="End with exit code 4 if a relative L2 distance is above this."),
]


def compare(
    first: First,
    second: Second,
    within: Within = None,
    max_megapixels: options.MaxMegapixels = None,
    sandbox: options.Sandbox = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Say how far two results are from each other: latents, images, videos, or folders of them.

    Prints the relative L2 distance, ||SECOND - FIRST|| / ||FIRST||, and the largest difference.
    Of images and videos PSNR and SSIM, too, all of 8-bit RGB; sound and times are not compared.
    Of two folders, files of one name are compared, and a.jpg with a.jpg.png, as decode calls it.
    The exit code is 4 if a distance is above --within, else 3 if any could not be compared.
    """
    with reporting(verbose, json, quiet=quiet):
        from pathlib import Path

        from tvae.cli import arguments
        from tvae.pipeline.comparison import pairs
        from tvae.pipeline.errors import InputError
        from tvae.pipeline.jobs.remote.refusals import refuse_urls
        from tvae.pipeline.media import sandbox as media_sandbox

        refuse_urls([first, second], "tvae compare")
        limit, failed = arguments.pixel_limit(max_megapixels), 0
        found: list[Comparison] = []
        todo = pairs(Path(first), Path(second))
        line = StatusLine(shown=not (json or quiet or no_progress))
        with media_sandbox.Sandbox(sandbox) as processes, line:
            for n, pair in enumerate(todo):
                line.show(f"{n + 1} of {len(todo)}: {pair.name}")
                try:
                    one = _compared(pair, processes, limit)
                except InputError as error:
                    failed += 1
                    line.clear()
                    _tell_failed(pair, str(error), json)
                    continue
                found.append(one)
                line.clear()
                _tell(pair, one, as_json=json, quiet=quiet)
        if not json and len(found) + failed > 1:
            tell(_summary(found, failed))
        if within is not None and not all(one.relative_l2 <= within for one in found):
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)
        if failed:
            raise typer.Exit(ExitCode.SOME_FAILED)


def _compared(pair: Pair, sandbox: Sandbox, max_pixels: int) -> Comparison:
    from tvae.pipeline.comparison import compare as compare_pair
    from tvae.pipeline.errors import InputError

    if pair.first is None or pair.second is None:
        raise InputError(f"only the {'second' if pair.first is None else 'first'} folder has it")
    return compare_pair(pair.first, pair.second, sandbox, max_pixels)


def _tell(pair: Pair, one: Comparison, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        from tvae.cli.table import emit

        distance = one.relative_l2 if math.isfinite(one.relative_l2) else None
        facts: dict[str, Any] = {"kind": one.kind, "equal": one.equal, "relative_l2": distance, "largest": one.largest}
        if one.quality is not None:
            facts |= one.quality.to_json()
        emit("compared", _names(pair) | facts | {"notices": [*one.notices]}, as_json=True)
        return
    for notice in () if quiet else one.notices:
        say(f"warning: {notice}")
    told = "equal" if one.equal else f"relative L2 {one.relative_l2:.3g}, largest difference {one.largest:.3g}"
    if one.quality is not None and not one.equal:
        told = f"{one.quality}, {told}"
    tell(printable(f"{pair.name}: {told}"))


def _tell_failed(pair: Pair, why: str, as_json: bool) -> None:
    if as_json:
        from tvae.cli.table import emit

        emit("not_compared", _names(pair) | {"error": why}, as_json=True)
    else:
        say(why if pair.name in why else f"{pair.name}: {why}")


def _names(pair: Pair) -> dict[str, Any]:
    return {name: str(path) for name, path in (("first", pair.first), ("second", pair.second)) if path is not None}


def _summary(found: list[Comparison], failed: int) -> str:
    counts = [(sum(one.equal for one in found), "equal"), (sum(not one.equal for one in found), "different")]
    told = [f"{count} {what}" for count, what in (*counts, (failed, "not compared")) if count]
    if found and not all(one.equal for one in found):
        told.append(f"relative L2 at most {max(one.relative_l2 for one in found):.3g}")
    return ", ".join(told)
