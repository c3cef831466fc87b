"""The program in this process."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

from typer.main import get_command
from typer.testing import CliRunner, Result

from tvae.cli.app import whole

__all__ = ["invoke"]

_command = cache(get_command)
"""All of its commands. Typer puts them together for every call, which takes longer than most calls do."""


def invoke(words: list[str], **options: Any) -> Result:
    """What it gives for these arguments. options: as Typer's runner takes them."""
    with mock.patch("typer.testing._get_command", _command):
        return CliRunner().invoke(whole(), words, **options)
