"""Images and videos decoded in processes of their own: a decoder that crashes, hangs or takes all memory costs its file
alone.

One process serves one file at a time and then the next; one that has died is replaced. Nothing that comes back is
trusted: descriptions are checked against their types, and pixels are as many bytes as the checked size says. It guards
against damage. It does not take rights away from a decoder that a file has taken over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import is_temporary
from tvae.pipeline.files.leftovers import is_left
from tvae.pipeline.files.own_folder import clear_entries
from tvae.pipeline.media.decoders import Decoder
from tvae.pipeline.media.image_check import looks_whole
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.probe import open_reader as open_here
from tvae.pipeline.media.room import MAX_PIXELS
from tvae.pipeline.media.sandbox_answers import Asked, channels, described, lines, raise_told
from tvae.pipeline.media.sandbox_process import DecoderProcess, DiedError
from tvae.pipeline.media.sandbox_video import SandboxedVideo
from tvae.pipeline.media.spec import Reader
from tvae.pipeline.media.still_reader import StillReader
from tvae.pipeline.media.stream_copy import copy_streams as copy_here
from tvae.pipeline.media.streams import SideStreams
from tvae.pipeline.media.tags import ClipTags
from tvae.pipeline.media.tags import read_tags as read_here
from tvae.pipeline.media.video_check import video_looks_whole

__all__ = ["SANDBOXES", "Sandbox", "SandboxMode"]

T = TypeVar("T")
SandboxMode = Literal["auto", "on", "off"]
SANDBOXES: tuple[SandboxMode, ...] = get_args(SandboxMode)
_PASSES = 10
"""That copying a file's streams, or muxing them, reads it, at most."""


class Sandbox:
    """The processes of one run, for any number of threads. Leaving it ends them all.

    Its functions are those of ``tvae.pipeline.media``, in another process for the files that the mode takes.
    """

    def __init__(self, mode: SandboxMode) -> None:
        """mode: *on* takes every file, *auto* those whose structure looks damaged, *off* none."""
        self._mode = mode
        self._lock = threading.Lock()
        self._idle: list[DecoderProcess] = []
        self._all: set[DecoderProcess] = set()
        self._distrusted: set[Path] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Also while another thread waits for a picture: that one is told that its decoder ended."""
        with self._lock:
            self._closed = True
            processes, self._all = [*self._all], set()
            self._idle.clear()
        for process in processes:
            process.end()

    def distrust(self, path: Path) -> None:
        """Of *auto*: take this file, whatever it looks like. A process has ended while it had it."""
        self._distrusted.add(Path(path).absolute())

    def distrusts(self, path: Path) -> bool:
        """Has it been told so?"""
        return bool(self._distrusted) and Path(path).absolute() in self._distrusted

    def takes(self, path: Path) -> bool:
        """Is this file one for another process?"""
        with self._open(path) as opened:
            return self._takes(path, opened)

    def _takes(self, path: Path, opened: Opened | None) -> bool:
        """The same of one that is open; None where there was no need, or it cannot be."""
        if self._mode != "auto":
            return self._mode == "on"
        return self.distrusts(path) or (opened is not None and not (looks_whole(opened) and video_looks_whole(opened)))

    def _open(self, path: Path) -> AbstractContextManager[Opened | None]:
        if self._mode == "on" or self.distrusts(path):
            return nullcontext()
        try:
            return Opened(path)
        except OSError:  # which is told when it is read
            return nullcontext()

    def open_reader(
        self,
        path: Path,
        max_pixels: int = MAX_PIXELS,
        hold: Callable[[int], None] | None = None,
        memory: int | None = None,
        *,
        alpha: bool = False,
        quick: bool = False,
        decoder: Decoder | None = None,
    ) -> Reader:
        path = Path(path).absolute()
        with self._open(path) as opened:
            if not self._takes(path, opened):
                how = {"alpha": alpha, "quick": quick}
                return open_here(path, max_pixels, hold, memory, lambda _: None, opened, decoder=decoder, **how)
        asked = Asked(path, max_pixels, memory, hold, alpha, quick, decoder)
        reader, process = self._served(path, lambda process: self._opened(process, asked))
        if not isinstance(reader, SandboxedVideo):
            self._give_back(process)
        if isinstance(reader, dict):
            raise_told(reader, path)
        assert not isinstance(reader, dict)
        return reader

    def count_frames(self, path: Path, max_pixels: int = MAX_PIXELS) -> int:
        with self.open_reader(path, max_pixels) as reader:
            return reader.count()

    def copy_streams(self, source: Path, dest_stem: Path, warnings: list[str]) -> SideStreams | None:
        source = Path(source).absolute()
        if not self.takes(source):
            return copy_here(source, dest_stem, warnings)
        try:
            answer = self._asked_for(source, {"streams": str(dest_stem.absolute())}, _PASSES * source.stat().st_size)
        except InputError:  # the process may have died over it
            clear_entries(dest_stem.parent, lambda entry: is_temporary(entry.name) and is_left(entry))
            raise
        warnings += lines(answer["warnings"])
        return None if answer["streams"] is None else SideStreams.from_json(answer["streams"], dest_stem.parent)

    def read_tags(self, path: Path, warnings: list[str]) -> ClipTags:
        path = Path(path).absolute()
        if not self.takes(path):
            return read_here(path, warnings)
        answer = self._asked_for(path, {"tags": True}, path.stat().st_size)
        warnings += lines(answer["warnings"])
        return ClipTags.from_record({"tags": answer["tags"]}, path)

    def rehearse_streams(self, side: SideStreams, muxer: str) -> None:
        """See ``stream_mux.rehearse``: what latents keep of a clip is read here once before it is read there."""
        files = [side.folder / name for name in (*side.files, *(one.file for one in side.attachments))]
        if any(self.takes(path) for path in files):
            record = {"record": side.to_json(), "folder": str(side.folder.absolute()), "muxer": muxer}
            self._asked_for(
                files[0].absolute(), {"muxed": record}, _PASSES * sum(path.stat().st_size for path in files)
            )

    def _asked_for(self, path: Path, question: dict[str, Any], size: int) -> dict[str, Any]:
        """The checked answer to a question on a file, for which so many bytes are read."""
        (wanted,) = question

        def ask(process: DecoderProcess) -> dict[str, Any]:
            with process.asked(size):
                answer = process.ask({"path": str(path), "bytes": size, "seconds": process.least, **question})
                if not answer.keys() & {"error", "fault"}:
                    lines(answer.get("warnings"))
                    if not isinstance(answer.get(wanted), dict | None):
                        raise ValueError(f"no {wanted}")
                return answer

        answer, process = self._served(path, ask)
        self._give_back(process)
        raise_told(answer, path)
        return answer

    def _opened(self, process: DecoderProcess, asked: Asked) -> Reader | dict[str, Any]:
        """What a process makes of a file: a reader, or an answer that says what is wrong."""
        size = asked.path.stat().st_size
        limits = {"max_pixels": asked.max_pixels, "memory": asked.memory}
        how = {"alpha": asked.alpha, "quick": asked.quick}
        question = {"path": str(asked.path), "decoder": asked.decoder, **how, **limits}
        with process.asked(size):
            answer = process.ask(question | {"bytes": size, "seconds": process.least})
            if "held" not in answer:
                return self._reader(process, answer, asked, size)
        try:
            asked.take(answer["held"])
        except ValueError as error:
            raise DiedError(f"its decoder gave a wrong answer ({error})") from None
        with process.asked(size + (asked.taken or 0)):
            return self._reader(process, process.ask({"go": True}), asked, size)

    def _reader(
        self, process: DecoderProcess, answer: dict[str, Any], asked: Asked, size: int
    ) -> Reader | dict[str, Any]:
        if "video" in answer:
            info, warnings = described(answer["video"], asked, "video"), lines(answer.get("warnings"))
            return SandboxedVideo(process, asked, size, info, warnings, done=self._give_back, failed=self._failed)
        if "image" in answer:
            info, warnings = described(answer["image"], asked, "image"), lines(answer.get("warnings"))
            pixels = process.pixels(info.height, info.width, channels(answer.get("channels"), asked))
            return StillReader(info, pixels, warnings)
        if not answer.keys() & {"error", "fault"}:
            raise ValueError("none of its answers")
        return answer

    def _served(self, path: Path, work: Callable[[DecoderProcess], T]) -> tuple[T, DecoderProcess]:
        """What a process gives for a file, and the process. Raises InputError where the file ends it."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = process or self._new_process()
            try:
                return work(process), process
            except DiedError as death:
                told = self._failed(process, path, death)
                if process.served and not process.timed_out and not self._closed:
                    continue  # a file before this one may have damaged it
                raise told from None
            except BaseException:
                self._drop(process)
                raise

    def _failed(self, process: DecoderProcess, path: Path, death: DiedError) -> InputError:
        self._drop(process)
        return InputError(f"{path}: {death}; leave it out, or convert it with another program")

    def _new_process(self) -> DecoderProcess:
        with self._lock:
            if self._closed:
                raise InputError("the run has ended")
            process = DecoderProcess()
            self._all.add(process)
        try:
            process.begin()
        except BaseException:
            self._drop(process)
            raise
        return process

    def _give_back(self, process: DecoderProcess) -> None:
        with self._lock:
            usable = not (self._closed or process.timed_out)
            if usable:
                process.served = True
                self._idle.append(process)
        if not usable:
            self._drop(process)

    def _drop(self, process: DecoderProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.end()
