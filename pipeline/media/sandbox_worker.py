"""The process that decodes for a sandbox: ``python -m tvae.pipeline.media.sandbox_worker``.

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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import av.error

from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.files.record import to_json
from tvae.pipeline.media.container import reason
from tvae.pipeline.media.image_read import is_image
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.probe import open_reader
from tvae.pipeline.media.room import VIDEO_HELD_BYTES
from tvae.pipeline.media.sandbox_messages import receive, seconds_for, send
from tvae.pipeline.media.spec import Reader
from tvae.pipeline.media.stream_copy import copy_streams
from tvae.pipeline.media.stream_mux import rehearse
from tvae.pipeline.media.streams import SideStreams
from tvae.pipeline.media.tags import read_tags
from tvae.pipeline.media.video_read import VideoReader

if sys.platform == "linux":
    import resource

__all__ = ["main"]

_BESIDE = 512 << 20
"""Bytes of address space that a decoder may take beside the picture: threads, tables, the pixels of a small one."""
_OF_STREAMS = 2 << 30
"""The same of copying streams: attachments, and frames that are decoded to find out what a stream is."""
_UNUSED = 2
"""Address space to memory: allocators keep what they are given back."""
_OF_A_THREAD, _HELD_BY_A_THREAD = 16 << 20, 6
"""Of each thread that decodes a video: its stack, and bytes of a pixel of its frame."""
_LATER = 10
"""Seconds after the sandbox's own limit, which comes first and is told."""
_SIGN_OF_LIFE = 1.0
"""Seconds between two, of counting."""


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
        """One file, from its path to all that is asked of it."""
        path = Path(question["path"])
        self._least, self._size = question["seconds"], question["bytes"]
        with self._telling(path):
            if "streams" in question:
                self._begin(_OF_STREAMS)
                warnings: list[str] = []
                side = copy_streams(path, Path(question["streams"]), warnings)
                self._tell({"streams": None if side is None else side.to_json(), "warnings": warnings})
            elif "muxed" in question:
                self._begin(_OF_STREAMS)
                record, folder, muxer = (question["muxed"][key] for key in ("record", "folder", "muxer"))
                rehearse(SideStreams.from_json(record, Path(folder)), muxer)
                self._tell({"muxed": {}, "warnings": []})
            elif "tags" in question:
                self._begin(_OF_STREAMS)
                warnings = []
                self._tell({"tags": read_tags(path, warnings).to_json(), "warnings": warnings})
            else:
                self._open(path, question["max_pixels"], question["memory"], question)

    def _open(self, path: Path, max_pixels: int, memory: int | None, question: dict[str, Any]) -> None:
        how = {name: question[name] for name in ("alpha", "quick", "decoder")}

        def hold(taken: int) -> None:
            self._tell({"held": taken})
            receive(self._questions)
            self._begin(taken, self._size + taken)

        self._begin(0)
        if memory is not None and not _pillow_reads(path, max_pixels):
            _bound_memory(memory)  # FFmpeg does not always tell before how much it takes
        with open_reader(path, max_pixels, hold, memory, _bound_video, **how) as reader:
            if isinstance(reader, VideoReader) and reader.info.kind == "video":
                self._serve(path, reader)
                return
            frames = list(reader)
            channels = frames[0].rgb.shape[2] if frames else 3
            self._tell({"image": _described(reader), "channels": channels, "warnings": reader.warnings})
            for frame in frames:
                self._answers.write(frame.rgb.data.cast("B"))
            self._answers.flush()

    def _serve(self, path: Path, reader: VideoReader) -> None:
        """Answers what is asked of a video until it is closed."""
        self._tell({"video": _described(reader), "warnings": reader.warnings})
        told, frames = len(reader.warnings), iter(reader)
        while "close" not in (question := receive(self._questions)):
            with self._telling(path):
                self._clock()
                if "count" in question:
                    self._count(reader)
                    continue
                frame = next(frames, None)
                new, told = reader.warnings[told:], len(reader.warnings)
                if frame is None:
                    self._tell({"end": True, "warnings": new})
                else:
                    self._tell({"frame": [frame.pts, frame.duration], "warnings": new})
                    self._answers.write(frame.rgb.data.cast("B"))
                    self._answers.flush()

    def _count(self, reader: VideoReader) -> None:
        count, last = 0, time.monotonic()
        for _ in reader.counting():
            count += 1
            if time.monotonic() - last > _SIGN_OF_LIFE:
                self._tell({"counting": count})
                self._clock()
                last = time.monotonic()
        self._tell({"count": count})

    @contextlib.contextmanager
    def _telling(self, path: Path) -> Iterator[None]:
        """What goes wrong inside is the answer."""
        try:
            yield
        except (BrokenPipeError, EOFError):  # nobody asks any more
            raise
        except (InputError, OutputError, OSError, MemoryError, av.error.FFmpegError) as error:
            self._tell({"error": _told(error, path)} | ({"output": True} if isinstance(error, OutputError) else {}))
        except Exception as error:  # whatever it is, the sandbox raises it
            self._tell({"fault": f"{type(error).__name__}: {error}"})
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _tell(self, answer: dict[str, Any]) -> None:
        """Waiting for who listens, and for the next question, is no work."""
        faulthandler.cancel_dump_traceback_later()
        send(self._answers, answer)

    def _begin(self, taken: int, work: int | None = None) -> None:
        self._clock(work)
        _bound_memory(taken)

    def _clock(self, work: int | None = None) -> None:
        """Work begins, on so many bytes; None: on the whole file."""
        seconds = seconds_for(self._size if work is None else work, self._least) + _LATER
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._nowhere)


def _described(reader: Reader) -> dict[str, Any]:
    found: dict[str, Any] = to_json(reader.info)
    return found | {"path": None}


def _pillow_reads(path: Path, max_pixels: int) -> bool:
    try:
        with Opened(path) as opened:
            return is_image(opened, max_pixels)
    except (InputError, OSError):  # told when it is opened
        return True


def _told(error: Exception, path: Path) -> str:
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return (
            f"{path}: its decoder asks for more memory than a picture of its size needs; "
            "leave it out, or convert it with another program"
        )
    return str(error) if isinstance(error, InputError | OutputError) else f"cannot be read: {reason(error)}"


def _bound_video(pixels: int) -> None:
    threads = (os.cpu_count() or 1) * (_OF_A_THREAD + _HELD_BY_A_THREAD * pixels)
    _bound_memory(VIDEO_HELD_BYTES * pixels + threads)


def _bound_memory(taken: int) -> None:
    """Beside what the process has now. Systems other than Linux have no such limit, or none that holds."""
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = now + _BESIDE + _UNUSED * taken
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


if __name__ == "__main__":
    main()
