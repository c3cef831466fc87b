"""A process that is killed while it writes results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["killed_at"]

KILLED = """
import os, signal, sys
from pathlib import Path
from tvae.pipeline.files.atomic import temporary_path
from tvae.pipeline.files.lock import one_writer
held = [one_writer(Path(name), 0) for name in sys.argv[1:]]
for lock, name in zip(held, sys.argv[1:], strict=True):
    lock.__enter__()
    temporary_path(Path(name)).write_bytes(b"half a result")
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_at(*outputs: Path) -> None:
    """Leave a lock and a temporary file beside each of these outputs, as a killed run does."""
    paths = os.pathsep.join(path for path in sys.path if path)
    program = [sys.executable, "-P", "-c", KILLED, *map(str, outputs)]
    assert subprocess.run(program, env=os.environ | {"PYTHONPATH": paths}, check=False).returncode < 0
