"""Tasks in processes of their own, which may have only so much of the device: one task's memory is not another's."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from card import GIB, Card

from measuring.heard import heard
from measuring.watch import Watch

__all__ = ["Apart", "Outcome"]

_FORKED = ("initialization error", "re-initialize CUDA", "driver initialization failed", "No CUDA GPUs are available")
"""What a process says that was copied from one that had a device."""
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
        self._method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

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

            with heard() as told:
                found = TASKS[task](request)
            return {**found, "heard": told}
        try:
            return self._answered(self._method, task, request, seconds, env)
        except RuntimeError as error:
            if self._method == "spawn" or not any(word in str(error) for word in _FORKED):
                raise
            print(f"processes are no copies any more: {error}", flush=True)
            self._method = "spawn"
            return self._answered(self._method, task, request, seconds, env)

    def _answered(
        self, method: str, task: str, request: dict[str, Any], seconds: float, env: dict[str, str] | None
    ) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            process = _context(method).Process(target=_work, args=(task, json.dumps(request), env or {}, folder))
            process.start()
            process.join(max(1.0, seconds))
            if process.is_alive():
                process.kill()
                process.join()
                raise RuntimeError(f"not done after {seconds:.0f} s")
            if process.exitcode != 0:
                log = Path(folder) / "log"
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
                told = [line for line in lines if _TOLD.match(line)] or [line for line in lines if line.strip()]
                raise RuntimeError(told[-1] if told else f"ended with {process.exitcode}")
            answer: dict[str, Any] = json.loads((Path(folder) / "answer").read_text(encoding="utf-8"))
        return answer


@cache
def _context(method: str) -> Any:
    """With ``forkserver`` new processes are copies of one that has imported everything and done nothing."""
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        own, before = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [own, before]))  # the copied one starts with these
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # looking for a device must not begin to use it
        context.set_forkserver_preload(["measuring.child"])
    return context


def _work(*arguments: Any) -> None:
    """Imported by the new process, which has no device yet."""
    from measuring.child import work

    work(*arguments)
