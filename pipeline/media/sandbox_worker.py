"""The process that decodes images for a sandbox: ``python -m tvae.pipeline.media.sandbox_worker``.

It reads questions from stdin and answers on stdout until stdin ends (see ``sandbox_messages``). On Linux it takes no
more memory than a picture of the size needs; everywhere it ends by itself after the time limit, so that it never
outlives the run for long.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import IO, Any

import av.error

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.record import to_json
from tvae.pipeline.media.container import reason
from tvae.pipeline.media.image_read import is_image
from tvae.pipeline.media.probe import open_reader
from tvae.pipeline.media.sandbox_messages import receive, seconds_for, send

if sys.platform == "linux":
    import resource

__all__ = ["main"]

_BESIDE = 512 << 20
"""Bytes of address space that a decoder may take beside the picture: threads, tables, the pixels of a small one."""
_UNUSED = 2
"""Address space to memory: allocators keep what they are given back."""
_LATER = 10
"""Seconds after the sandbox's own limit, which comes first and is told."""


def main() -> None:
    """Until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal's processes
    answers, questions = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what libraries print is no answer
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with open(os.devnull, "w") as nowhere:
        worker = _Worker(questions, answers, nowhere)
        send(answers, {"ready": True})
        with contextlib.suppress(EOFError, BrokenPipeError):
            while True:
                worker.answer(receive(questions))


class _Worker:
    def __init__(self, questions: IO[bytes], answers: IO[bytes], nowhere: IO[str]) -> None:
        self._questions, self._answers, self._nowhere = questions, answers, nowhere

    def answer(self, question: dict[str, Any]) -> None:
        """One file, from its path to its pixels."""
        path, max_pixels, memory = Path(question["path"]), question["max_pixels"], question["memory"]
        least, size = question["seconds"], question["bytes"]

        def hold(taken: int) -> None:
            faulthandler.cancel_dump_traceback_later()  # waiting for room is no work
            send(self._answers, {"held": taken})
            receive(self._questions)
            self._begin(least, size + taken, taken)

        self._begin(least, size, 0)
        try:
            if memory is not None and not _pillow_reads(path, max_pixels):
                _bound_memory(memory)  # FFmpeg does not tell before how much it takes
            with open_reader(path, max_pixels, hold, memory) as reader:
                if reader.info.kind == "video":
                    send(self._answers, {"video": True})
                    return
                frames = list(reader)
                info = to_json(reader.info) | {"path": None}
                send(self._answers, {"image": info, "warnings": reader.warnings})
                for frame in frames:
                    self._answers.write(frame.rgb.data.cast("B"))
                self._answers.flush()
        except (InputError, OSError, MemoryError, av.error.FFmpegError) as error:
            send(self._answers, {"error": _told(error, path)})
        except Exception as error:  # whatever it is, the sandbox raises it
            send(self._answers, {"fault": f"{type(error).__name__}: {error}"})
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _begin(self, least: float, work: int, taken: int) -> None:
        faulthandler.dump_traceback_later(seconds_for(work, least) + _LATER, exit=True, file=self._nowhere)
        _bound_memory(taken)


def _pillow_reads(path: Path, max_pixels: int) -> bool:
    try:
        return is_image(path, max_pixels)
    except (InputError, OSError):  # told when it is opened
        return True


def _told(error: Exception, path: Path) -> str:
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return (
            f"{path}: its decoder asks for more memory than a picture of its size needs; "
            "leave it out, or convert it with another program"
        )
    return str(error) if isinstance(error, InputError) else f"cannot be read: {reason(error)}"


def _bound_memory(taken: int) -> None:
    """Beside what the process has now. Systems other than Linux have no such limit, or none that holds."""
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = now + _BESIDE + _UNUSED * taken
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


if __name__ == "__main__":
    main()
