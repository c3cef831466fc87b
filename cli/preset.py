"""``tvae preset list | show | export | tune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tvae.cli import completion, options
from tvae.cli.reporting import printable, reporting, tell

if TYPE_CHECKING:
    from tvae.presets import Preset

__all__ = ["app"]

app = typer.Typer(help="Settings for a kind of device: list presets, show one, export one to edit, measure one.")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A preset's name, or a .toml file.", autocompletion=completion.preset_names),
]


@app.callback(invoke_without_command=True)
def preset(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list")
def list_presets(
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """List all presets, your own included."""
    with reporting(verbose, json, quiet=quiet):
        from tvae import presets
        from tvae.cli.table import emit

        for name in presets.names():
            found = _load(name)
            if json:
                emit("preset", {"name": name, "title": found.title, "source": str(found.source)}, as_json=True)
            else:
                tell(printable(f"{name:8} {found.title}"))
        if not json:
            tell(printable(f"your own: *.toml in {presets.user_folder()}"))


@app.command()
def show(
    name: Name,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Show the values of a preset, and what they were measured on."""
    with reporting(verbose, json, quiet=quiet):
        from tvae.cli.table import emit

        found = _load(name)
        emit("preset", found.to_json(), json)


@app.command()
def export(
    name: Name,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write here instead of to stdout.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Print a preset as TOML, with its comments. Edit it, and pass it as --preset FILE.toml."""
    with reporting(verbose, quiet=quiet and output is not None):
        from pathlib import Path

        from tvae import presets
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.files.atomic import put_text

        _load(name)
        text = presets.export(name)
        if output is None:
            tell(text.removesuffix("\n"))
            return
        if Path(output).is_file() and not overwrite:
            raise UsageError(f"{output} exists; pass --overwrite to replace it")
        try:
            put_text(Path(output), text)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror or error}") from error


@app.command()
def tune(
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.toml", help="Write the preset here.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the preset among your own. The name of a built-in one replaces it, also for auto.",
            show_default="that of the preset it starts from, with -tuned",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    vae: options.Vae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    config: options.Config = None,
    device: options.Device = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            metavar="N",
            min=16,
            help="Width and height of the picture in pixels.",
            show_default="1024; on a CPU 128",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Try fewer values, time fewer calls, take a smaller picture.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Measure which settings are fastest on this machine, and write them as a preset.

    Starts from the preset that auto chooses here, and keeps its number type.
    Kernel levels are chosen by single calls that pass the equivalence check.
    Memory layout, strip height, cuDNN's search and CUDA graphs are chosen by decoding a picture.
    """
    with reporting(verbose, json, quiet=quiet):
        from tvae.cli import tuning

        tuning.tune(
            output=output,
            name=name,
            overwrite=overwrite,
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            config=config,
            device=device,
            size=size,
            quick=quick,
            json=json,
            progress=not (json or quiet or no_progress),
        )


def _load(name: str) -> Preset:
    """The preset of this name. Raises UsageError: presets raise ValueErrors of their own."""
    from tvae import presets
    from tvae.pipeline.settings.known_levels import with_known_levels

    try:
        return with_known_levels(presets.load(name))
    except ValueError as error:
        from tvae.pipeline.errors import UsageError

        raise UsageError(str(error)) from error
