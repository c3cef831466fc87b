"""The ``tvae`` program: its commands, and what the command line itself can get wrong.

Importing this module imports no torch, av, numpy or diffusers: ``tvae --help`` is instant.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import say
from tvae.cli.waiting import wait_asleep
from tvae.pipeline.settings.collector import collects_less
from tvae.pipeline.settings.crashes import tells_of_crashes

__all__ = ["main", "whole"]

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


_COMMANDS = ("encode", "decode", "roundtrip", "batch", "cache", "convert", "plan", "inspect", "compare", "verify")
_GROUPS = ("bench", "preset", "comfyui")
"""Commands that have commands."""
_LAST = ("models", "doctor")
"""In the order of ``tvae --help``."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tvae {version('tvae')}")
        raise typer.Exit


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


def _program(names: Iterable[str]) -> typer.Typer:
    """The program with these of its commands. Each has a module of its name, and there a function, or a program."""
    made = typer.Typer(
        cls=Program,
        name="tvae",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback(invoke_without_command=True)(tvae)
    for name in names:
        module = import_module(f"tvae.cli.{name}")
        if name in _GROUPS:
            made.add_typer(module.app, name=name)
        else:
            made.command()(getattr(module, name))
    return made


@cache
def whole() -> typer.Typer:
    """The program with all of its commands."""
    return _program((*_COMMANDS, *_GROUPS, *_LAST))


def main() -> None:
    """A command, by the arguments of the process. Raises SystemExit with the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names the terminal's encoding lacks must not stop a run
    tells_of_crashes()
    wait_asleep()
    collects_less()
    named = [name for name in sys.argv[1:2] if name in (*_COMMANDS, *_GROUPS, *_LAST)]
    made = _program(named) if named else whole()  # to make all of them takes longer than to run some
    made()
