"""What a command says, and how."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Json", "NoProgress", "Quiet", "Verbose"]

REPORT = "Report"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line on stdout.", rich_help_panel=REPORT)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.", rich_help_panel=REPORT)]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print tracebacks and logs.", rich_help_panel=REPORT)]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bars.", rich_help_panel=REPORT)]
