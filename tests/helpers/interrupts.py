"""KeyboardInterrupt at a chosen moment of the main thread, and a program that tries many: see ``test_interrupts``."""

from __future__ import annotations

import dis
import inspect
import linecache
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from working_threads import working_threads

WATCHED = (
    "threading.py",
    "queue.py",
    *(f"{name}.py" for name in ("files/bell", "files/flushing", "jobs/overlap", "jobs/queues", "jobs/room")),
)


class Interrupts:
    """Raises at the n-th moment at which Python may: where code of the files begins, ends, or goes to the next line."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    @contextmanager
    def armed(self) -> Iterator[None]:
        """In this thread, in this block."""
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        name = frame.f_code.co_filename.replace("\\", "/")
        if not name.endswith(WATCHED) or _starts_a_thread(frame):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line.startswith(("with ", "finally:")):
            return self._trace  # one instruction of a plain lock: nothing comes between
        if event == "line" and frame.f_code.co_code[frame.f_lasti] == dis.opmap["NOP"]:
            return self._trace  # ``try:`` and the like: Python raises after calls and jumps alone
        leaves = event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR
        if line.startswith("surely(") or frame.f_code.co_name == "surely" or leaves:
            return self._trace  # the moments that nothing can guard: between two blocks that do
        self.seen += 1
        if self.seen == self.at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self._trace


def _starts_a_thread(frame: FrameType | None) -> bool:
    """Python's own handshake with a new thread is not ours to mend."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if frame.f_code.co_name in ("start", "__init__"):
            return True
        frame = frame.f_back
    return False


def moments(work: Callable[[], None]) -> int:
    """How many there are in a piece of work."""
    found = Interrupts(-1)
    with found.armed():
        work()
    return found.seen


def main(source: str, out: str, operation: str, rounds: str) -> None:
    """Folder jobs that are interrupted at random moments. Prints the number of those that were."""
    from means import Means

    from tvae.pipeline.jobs import Job, run_job

    rng, cut, number = random.Random(int(rounds)), 0, iter(range(10**9))

    def work() -> None:
        job = Job(operation, (source,), output=str(Path(out) / str(next(number))))  # type: ignore[arg-type]
        assert run_job(job, lambda _: None, Means()).failed == 0  # type: ignore[arg-type]

    most = moments(work)
    for _ in range(int(rounds)):
        moment = rng.randint(1, most)
        try:
            with Interrupts(moment).armed():
                work()
        except KeyboardInterrupt as error:
            cut += 1
            where = "".join(traceback.format_exception(error))
        deadline = time.monotonic() + 5
        while left := working_threads():
            assert time.monotonic() < deadline, (moment, left, where)
            time.sleep(0.01)
    print(cut)


if __name__ == "__main__":
    main(*sys.argv[1:])
