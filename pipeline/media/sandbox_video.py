"""A video that another process decodes, frame by frame."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvae.pipeline.media.room import VIDEO_HELD_BYTES
from tvae.pipeline.media.sandbox_answers import Asked, lines, raise_told, whole
from tvae.pipeline.media.sandbox_process import DecoderProcess, DiedError
from tvae.pipeline.media.spec import Frame, MediaInfo

__all__ = ["SandboxedVideo"]


class SandboxedVideo:
    """A Reader. The process decodes one frame ahead, and is busy with this video until it is closed."""

    def __init__(
        self,
        process: DecoderProcess,
        asked: Asked,
        size: int,
        info: MediaInfo,
        warnings: list[str],
        *,
        done: Callable[[DecoderProcess], None],
        failed: Callable[[DecoderProcess, Path, DiedError], Exception],
    ) -> None:
        """size: of the file in bytes. done, failed: are given the process when it is free, and when it is not to be
        used any more; the latter returns what is raised."""
        self.info, self.warnings = info, warnings
        self._process, self._asked = process, asked
        self._done, self._failed = done, failed
        self._work = size + VIDEO_HELD_BYTES * info.width * info.height
        self._ahead = self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        last: int | None = None
        while (frame := self._next(last)) is not None:
            last = frame.pts
            yield frame

    def count(self) -> int:
        """Raises InputError as iterating does."""
        answer = self._answer({"count": True}, ends={"count"})
        while "counting" in answer:  # a sign of life
            answer = self._answer(None, ends={"count"})
        raise_told(answer, self._asked.path)
        count: int = answer["count"]
        return count

    def close(self) -> None:
        """The process is free afterwards, or ended where it is at work."""
        if self._closed:
            return
        self._closed = True
        if self._ahead:
            self._failed(self._process, self._asked.path, DiedError("its reader has gone"))
            return
        try:
            with self._process.asked(0):
                self._process.send({"close": True})
        except DiedError as death:
            self._failed(self._process, self._asked.path, death)
        else:
            self._done(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, last: int | None) -> Frame | None:
        """last: the time of the frame before."""
        answer = self._answer(None if self._ahead else {"next": True}, last, ends={"frame", "end"})
        raise_told(answer, self._asked.path)
        frame: Frame | None = answer.get("frame")
        return frame

    def _answer(
        self, question: dict[str, Any] | None, last: int | None = None, *, ends: Collection[str]
    ) -> dict[str, Any]:
        """The answer to a question, or to an earlier one, with one of the keys ``ends`` or with what is wrong. A frame
        comes with its pixels, and the next is asked for."""
        if self._closed:
            raise ValueError("a closed video is read")
        self._ahead = True
        try:
            with self._process.asked(self._work):
                answer = self._process.ask(question) if question else self._process.receive()
                self.warnings += lines(answer.get("warnings", []))
                self._ahead = "counting" in answer
                if not answer.keys() & {*ends, "error", "fault"} and not ("count" in ends and self._ahead):
                    raise ValueError("none of its answers")
                if "count" in answer:
                    whole(answer["count"])
                if "frame" in answer:
                    answer["frame"] = self._frame(answer["frame"], last)
                    self._process.send({"next": True})
                    self._ahead = True
        except DiedError as death:
            self._closed = True
            raise self._failed(self._process, self._asked.path, death) from None
        return answer

    def _frame(self, times: Any, last: int | None) -> Frame:
        if not isinstance(times, list) or len(times) != 2:
            raise ValueError("a frame without its times")
        pts, duration = map(whole, times)
        if last is not None and pts <= last:
            raise ValueError("times that go backwards")
        return Frame(self._process.pixels(self.info.height, self.info.width), pts, duration)
