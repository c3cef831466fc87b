"""Images decoded in processes of their own: a decoder that crashes, hangs or takes all memory costs its file alone.

One process serves one file at a time and then the next; one that has died is replaced. Nothing that comes back is
trusted: descriptions are checked against their types, and pixels are as many bytes as the checked size says. It guards
against damage. It does not take rights away from a decoder that a file has taken over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import numpy as np

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.record import from_json
from tvae.pipeline.media.image_check import looks_whole
from tvae.pipeline.media.room import MAX_PIXELS
from tvae.pipeline.media.sandbox_messages import receive, seconds_for, send
from tvae.pipeline.media.spec import MediaInfo
from tvae.pipeline.media.still_reader import StillReader

__all__ = ["SANDBOXES", "Sandbox", "SandboxMode"]

SandboxMode = Literal["auto", "on", "off"]
SANDBOXES: tuple[SandboxMode, ...] = get_args(SandboxMode)
LEAST_SECONDS = 60.0
"""That a file may take, however small."""
_START_SECONDS = 60.0
COMMAND = (sys.executable, "-P", "-m", "tvae.pipeline.media.sandbox_worker")


class Sandbox:
    """The processes of one run, for any number of threads. Leaving it ends them all."""

    def __init__(self, mode: SandboxMode) -> None:
        """mode: *on* takes every image, *auto* those that fail ``looks_whole``, *off* none."""
        self._mode = mode
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Also while another thread waits for an image: that one is told that its decoder ended."""
        with self._lock:
            self._closed = True
            workers, self._all = [*self._all], set()
            self._idle.clear()
        for worker in workers:
            worker.end()

    def read_image(
        self,
        path: Path,
        max_pixels: int = MAX_PIXELS,
        hold: Callable[[int], None] | None = None,
        memory: int | None = None,
    ) -> StillReader | None:
        """As ``open_reader`` does it, in another process. None where the caller is to open the file itself: a video,
        and whatever the mode does not take."""
        path = Path(path).absolute()
        if self._mode == "off" or (self._mode == "auto" and looks_whole(path)):
            return None
        asked = _Asked(path, max_pixels, hold, memory)
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or self._new_worker()
            try:
                answer = worker.answer(asked)
            except _DiedError as death:
                self._drop(worker)
                if worker.served and not worker.timed_out and not self._closed:
                    continue  # a file before this one may have damaged it
                raise InputError(f"{path}: {death}; leave it out, or convert it with another program") from None
            except BaseException:
                self._drop(worker)
                raise
            self._give_back(worker)
            return _image(answer, path)

    def _new_worker(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise InputError("the run has ended")
            worker = _Worker()
            self._all.add(worker)
        try:
            worker.begin()
        except BaseException:
            self._drop(worker)
            raise
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            usable = not (self._closed or worker.timed_out)
            if usable:
                worker.served = True
                self._idle.append(worker)
        if not usable:
            self._drop(worker)

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.end()


class _DiedError(Exception):
    """A process ended, or was ended, before its answer."""


class _Asked:
    """One file. ``taken``: bytes for which room has been asked."""

    def __init__(self, path: Path, max_pixels: int, hold: Callable[[int], None] | None, memory: int | None) -> None:
        self.path, self.max_pixels, self.memory = path, max_pixels, memory
        self._hold = hold
        self.taken: int | None = None

    def hold(self, taken: Any) -> None:
        """`ValueError` for what no reader asks for."""
        if type(taken) is not int or taken < 0 or (self.memory is not None and taken > self.memory):
            raise ValueError("it asks for more room than there is")
        if self._hold is not None and self.taken is None:
            self._hold(taken)
        self.taken = taken

    def room_for(self, info: MediaInfo) -> tuple[int, int, int]:
        """The shape of its pixels. `ValueError` for more than was allowed."""
        if info.kind != "image":
            raise ValueError("it is no image")
        pixels = info.width * info.height
        room = self.memory if self.taken is None else self.taken
        if min(info.width, info.height) < 1 or pixels > self.max_pixels or (room is not None and 3 * pixels > room):
            raise ValueError("its picture is larger than it may be")
        return info.height, info.width, 3


class _Worker:
    def __init__(self) -> None:
        # as this process finds its modules; numbers are computed by one thread
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
        settings = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=os.environ | settings
            )
        except OSError as error:
            raise _not_started(str(error.strerror)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self.served = False
        """Has it answered before?"""
        self.timed_out = False

    def begin(self) -> None:
        """Waits until it is ready."""
        try:
            with self._within(_START_SECONDS):
                receive(self._answers)
        except (OSError, ValueError, EOFError):
            self.end()
            raise _not_started(self._cause()) from None

    def answer(self, asked: _Asked) -> dict[str, Any]:
        """Of an image: ``image`` is its MediaInfo, ``rgb`` its pixels.

        Raises ``_DiedError``, and what ``hold`` raises.
        """
        work = asked.path.stat().st_size
        try:
            question = {"path": str(asked.path), "max_pixels": asked.max_pixels, "memory": asked.memory}
            with self._within(seconds_for(work, LEAST_SECONDS)):
                send(self._questions, question | {"seconds": LEAST_SECONDS, "bytes": work})
                answer = receive(self._answers)
                if "held" not in answer:
                    return self._with_pixels(answer, asked)
            asked.hold(answer["held"])
            with self._within(seconds_for(work + (asked.taken or 0), LEAST_SECONDS)):
                send(self._questions, {"go": True})
                return self._with_pixels(receive(self._answers), asked)
        except (OSError, EOFError):
            self.end()
            raise _DiedError(self._cause()) from None
        except ValueError as error:
            self.end()
            raise _DiedError(
                self._cause() if self.timed_out else f"its decoder gave a wrong answer ({error})"
            ) from None

    def end(self) -> None:
        """It is gone afterwards, whatever it did."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._questions, self._answers):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()

    def _with_pixels(self, answer: dict[str, Any], asked: _Asked) -> dict[str, Any]:
        if "image" not in answer:
            return answer
        described, warnings = answer["image"], answer.get("warnings")
        if not isinstance(described, dict) or not isinstance(warnings, list):
            raise ValueError("no description")
        info = from_json(MediaInfo, described | {"path": asked.path}, "image")
        rgb = np.empty(asked.room_for(info), np.uint8)
        if cast(BufferedReader, self._answers).readinto(rgb.data.cast("B")) != rgb.nbytes:
            raise EOFError
        return {"image": info, "rgb": rgb, "warnings": [str(line) for line in warnings]}

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        def too_late() -> None:
            self.timed_out = True
            self._process.kill()

        self._seconds = seconds
        timer = threading.Timer(seconds, too_late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cause(self) -> str:
        """Why a process that is gone is gone."""
        if self.timed_out:
            return f"its decoder took more than {self._seconds:.3g} seconds and was stopped"
        code = self._process.returncode
        if code >= 0:
            return f"its decoder ended with code {code:#x}" if code > 255 else f"its decoder ended with code {code}"
        try:
            return f"its decoder crashed ({signal.Signals(-code).name})"
        except ValueError:
            return f"its decoder crashed (signal {-code})"


def _not_started(why: str) -> UsageError:
    return UsageError(f"the process that decodes images does not start ({why}); --sandbox off does without it")


def _image(answer: dict[str, Any], path: Path) -> StillReader | None:
    if "rgb" in answer:
        return StillReader(answer["image"], answer["rgb"], answer["warnings"])
    if "video" in answer:
        return None
    if "error" in answer:
        raise InputError(str(answer["error"]))
    raise RuntimeError(f"{path}: {answer.get('fault')}")
