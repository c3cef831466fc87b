"""The ``tvae`` program: its commands, and what the command line itself can get wrong.

Importing this module imports no torch, av, numpy or diffusers: ``tvae --help`` is instant.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tvae.cli import (
    batch,
    bench,
    cache,
    comfyui,
    compare,
    convert,
    decode,
    doctor,
    encode,
    inspect,
    models,
    plan,
    preset,
    roundtrip,
    verify,
)
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import say
from tvae.cli.waiting import wait_asleep
from tvae.pipeline.settings.collector import collects_less
from tvae.pipeline.settings.crashes import tells_of_crashes

__all__ = ["app", "main"]

# Typer carries its own click, or in older versions the real one: either way the root of what parsing raises.
ParsingError: type[Any] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Program(TyperGroup):
    """Says what is wrong with the command line in one line, and does not expand patterns: the jobs do."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        if options.get("standalone_mode") is False:
            return super().main(args, *rest, **options)
        try:
            code = super().main(args, *rest, **options | {"standalone_mode": False, "windows_expand_args": False})
        except ParsingError as error:
            command = error.ctx.command_path if getattr(error, "ctx", None) else "tvae"
            say(f"{error.format_message().replace('Value error, ', '').rstrip('.')} (see {command} --help)")
            code = ExitCode.USAGE
        except (typer.Abort, KeyboardInterrupt):
            code = ExitCode.INTERRUPTED
        sys.exit(int(code or 0))


app = typer.Typer(
    cls=Program,
    name="tvae",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (encode, decode, roundtrip, batch, cache, convert, plan, inspect, compare, verify):
    app.command()(getattr(module, module.__name__.rpartition(".")[2]))
app.add_typer(bench.app, name="bench")
app.add_typer(preset.app, name="preset")
app.add_typer(comfyui.app, name="comfyui")
app.command()(models.models)
app.command()(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tvae {version('tvae')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tvae(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run the VAEs of diffusion models over images and videos of any size, strip by strip, with the untiled model's
    numbers."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """A command, by the arguments of the process. Raises SystemExit with the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names the terminal's encoding lacks must not stop a run
    tells_of_crashes()
    wait_asleep()
    collects_less()
    app()
