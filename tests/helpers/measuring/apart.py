"""Tasks in processes of their own, which may have only so much of the device: one task's memory is not another's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring.card import GIB, Card
from measuring.watch import Watch

__all__ = ["Apart", "Outcome"]

_TOLD = re.compile(r"[\w.]*(Error|Exception|Unsupported\w*|Failed)\b")
"""How the line of a traceback begins that says what it was."""
_OUT_OF_MEMORY = ("out of memory", "OutOfMemory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC", "ALLOC_FAILED")


@dataclass(frozen=True)
class Outcome:
    """What a task answered, and the most that its process took of the device and of the host's memory."""

    answer: dict[str, Any]
    device: int
    host: int
    capped: bool


class Apart:
    """Runs tasks of ``measuring.child`` one after the other. here: in this process, to try a script."""

    def __init__(self, card: Card, here: bool = False) -> None:
        self._card, self._here = card, here

    def run(
        self,
        task: str,
        request: dict[str, Any],
        *,
        seconds: float,
        cap: int | None = None,
        env: dict[str, str] | None = None,
    ) -> Outcome:
        """cap: bytes of the device that are free when the process begins; all others are held here meanwhile.

        One that fails for want of memory under a cap runs again without, so that it is known how much it wants.
        RuntimeError with the last line that a failed task wrote.
        """
        self._card.settle()
        held = None if cap is None else self._held(cap)
        try:
            with Watch(self._card) as watch:
                answer = self._answer(task, request, seconds, env)
        except RuntimeError as error:
            if held is None or not any(word in str(error) for word in _OUT_OF_MEMORY):
                raise
            del held
            self._card.restart()
            again = self.run(task, request, seconds=seconds, env=env)
            note = f"OUT OF MEMORY in {(cap or 0) / GIB:.2f} GiB; this is without the cap"
            return Outcome({**again.answer, "note": note}, again.device, again.host, False)
        finally:
            held = None
            self._card.restart()
        return Outcome(answer, watch.device, watch.host, cap is not None)

    def _held(self, cap: int) -> Any:
        self._card.restart()
        return self._card.hold(max(0, self._card.free() - cap))

    def _answer(self, task: str, request: dict[str, Any], seconds: float, env: dict[str, str] | None) -> dict[str, Any]:
        if self._here:
            from measuring.child import TASKS

            return TASKS[task](request)
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "measuring.child", task],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": _path(), **(env or {})},
            )
            try:
                out, _ = process.communicate(json.dumps(request), timeout=max(1.0, seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise RuntimeError(f"not done after {seconds:.0f} s") from None
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
        if process.returncode != 0:
            told = [line for line in lines if _TOLD.match(line)] or lines or [f"ended with {process.returncode}"]
            raise RuntimeError(told[-1])
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer


def _path() -> str:
    """Where modules are found, this package among them."""
    own = str(Path(__file__).parents[1])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
