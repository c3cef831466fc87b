"""The step that verifies: outputs are read whole and compared with their checksums."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.looked_at import remote_verdicts
from tvae.pipeline.batch.names_below import is_below, is_there
from tvae.pipeline.batch.verdicts import made_by, once, verdicts, wants_all
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.events import Event, ItemFailed, ItemVerified, RunDone, RunStarted
from tvae.pipeline.stores import is_url

__all__ = ["VERIFY", "CheckStep", "check_of", "run_check"]

VERIFY = "verify"


@dataclass(frozen=True)
class CheckStep:
    """inputs: latents, and folders of outputs of any step. source: see ``verdicts``. said: as of ``Step``."""

    inputs: tuple[str, ...]
    source: str | None
    vae: str | None
    allow_pickle: bool
    said: Mapping[str, Any]
    only_there: bool = False
    """Inputs that are not there are passed over: nothing was made there."""

    def home(self, outputs: list[str]) -> str:
        """Of the outputs of steps before it, the one whose report tells of it; the first input where there is none."""
        first = self.inputs[0]
        return next((one for one in reversed(outputs) if is_below(first, one)), first)


def check_of(outputs: Mapping[str, str]) -> CheckStep:
    """A step that verifies all that others have written, as far as it is there. outputs: their folders, and how the
    file says them. Raises UsageError where there are none."""
    if not outputs:
        raise UsageError("--verify reads what a job writes, and this one writes nothing; leave it out")
    said = {"operation": VERIFY, "inputs": [*outputs.values()]}
    return CheckStep((*outputs,), None, None, allow_pickle=False, said=said, only_there=True)


def run_check(step: CheckStep, takes: Callable[[str], bool], on_event: Callable[[Event], None]) -> None:
    """Reads everything, and tells of each. takes: is a path below an input a matter of this process?

    Raises UsageError for an input or a VAE that there is not.
    """
    begin = time.monotonic()
    inputs = [name for name in step.inputs if not step.only_there or is_there(name)]
    for name in (*inputs, *([] if step.source is None else [step.source])):
        if not is_url(name) and not Path(name).exists():
            raise UsageError(f"{name} does not exist")
    vae = None if step.vae is None else made_by(step.vae, step.allow_pickle)
    sources = None if step.source is None else Path(step.source)
    asked = wants_all if sources is not None else once()  # a source is looked for by the folder that was named

    def wanted(name: str, path: Path) -> bool:
        return asked(path) and takes(_below(path, name))  # in this order: processes share by the first name of each

    found = [(name, remote_verdicts(name, vae, partial(wanted, name)) if is_url(name) else None) for name in inputs]
    on_event(RunStarted(VERIFY, 0))
    fine = failed = 0
    for name, elsewhere in found:
        try:
            here = verdicts(Path(name), sources, vae, partial(wanted, name)) if elsewhere is None else elsewhere
            for verdict in here:
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


def _below(path: Path, name: str) -> str:
    """A path from the input on that it was found in; of that input itself its last part."""
    text = str(path) if is_url(name) else path.as_posix()
    root = name.rstrip("/") if is_url(name) else Path(name).as_posix()
    return path.name if text == root else text.removeprefix(root).lstrip("/")
