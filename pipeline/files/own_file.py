"""Files that tvae writes beside results: each begins with a mark, and nothing else is written over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import takes_a_stream
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.own_folder import is_link

__all__ = ["MARKS", "OwnFile", "check_own"]

OwnFile = Literal["failed list", "log", "manifest", "report"]
MARKS: dict[OwnFile, str] = {
    "failed list": "# tvae failed list",
    "log": "# tvae log",
    "manifest": '{"format": "tvae manifest"',
    "report": '{"format": "tvae batch report"',
}
"""How each begins. A line with # is a comment in lists of inputs."""


def check_own(path: Path, kind: OwnFile, name: str = "") -> None:
    """Raise UsageError unless this is a file of ours of that kind, a device or a pipe, or nothing is there. `OSError`
    where it cannot be read.

    Args:
        name: shown in messages instead of the path.
    """
    if takes_a_stream(path) or not os.path.lexists(path):
        return
    mark = MARKS[kind].encode()
    if not is_link(path):
        with open_regular(path) as file:
            first = file.read(len(mark))
        if first and mark.startswith(first):  # a kill may have torn the first line
            return
    raise UsageError(f"{name or path} is not a {kind} of tvae; move it, or name another")
