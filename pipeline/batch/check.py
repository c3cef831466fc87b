"""The step that verifies: outputs are read whole and compared with their checksums."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.verdicts import made_by, verdicts
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.events import Event, ItemFailed, ItemVerified, RunDone, RunStarted

__all__ = ["VERIFY", "CheckStep", "run_check"]

VERIFY = "verify"


@dataclass(frozen=True)
class CheckStep:
    """inputs: latents, and folders of outputs of any step. source: see ``verdicts``. said: as of ``Step``."""

    inputs: tuple[str, ...]
    source: str | None
    vae: str | None
    allow_pickle: bool
    said: Mapping[str, Any]

    def home(self, folders: list[Path]) -> str:
        """Of the folders of steps before it, the one whose report tells of it; the first input where there is none."""
        path = Path(self.inputs[0])
        return str(next((one for one in reversed(folders) if one in (path, *path.parents)), path))


def run_check(step: CheckStep, takes: Callable[[str], bool], on_event: Callable[[Event], None]) -> None:
    """Reads everything, and tells of each. takes: is a path below an input a matter of this process?

    Raises UsageError for an input or a VAE that there is not.
    """
    begin = time.monotonic()
    for name in (*step.inputs, *([] if step.source is None else [step.source])):
        if not Path(name).exists():
            raise UsageError(f"{name} does not exist")
    vae = None if step.vae is None else made_by(step.vae, step.allow_pickle)
    sources = None if step.source is None else Path(step.source)
    on_event(RunStarted(VERIFY, 0))
    fine = failed = 0
    for name in step.inputs:
        try:
            for verdict in verdicts(Path(name), sources, vae):
                below = verdict.path.relative_to(name).as_posix() if verdict.path != Path(name) else verdict.path.name
                if not takes(below):
                    continue
                number = fine + failed
                if verdict.state in ("damaged", "incomplete", "unreadable"):
                    failed += 1
                    on_event(ItemFailed(verdict.path, number, f"{verdict.path} is {verdict.state}: {verdict.reason}"))
                else:
                    fine += 1
                    on_event(ItemVerified(verdict.path, number, verdict.state, verdict.reason))
        except InputError as error:
            raise UsageError(str(error)) from error
    on_event(RunDone(fine, 0, failed, 0, time.monotonic() - begin))
