"""Writing the latents of a clip: a folder `<input name>.latents` of parts, committed by its index.

Parts appear one by one under their final names, each complete on its own. What an interrupted run left behind is
gone on with, if the next run wants the same (:meth:`VideoLatentsWriter.adopt`), and overwritten if not. A folder that
is complete already stays so until the new clip is: its successor grows in a hidden subfolder and takes over in
:meth:`VideoLatentsWriter.commit`. Files that are not ours are never touched, and a folder that holds something else
than latents of tvae is not ours to write into.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tvae.pipeline.errors import InputError, OutputError, TvaeError
from tvae.pipeline.files.atomic import discard, is_temporary, write_error
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.flushing import flush_file, flush_folder
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.own_folder import clear_folder, is_link, make_own_folder
from tvae.pipeline.files.tensor_header import read_texts
from tvae.pipeline.latents.index import INDEX_NAME, FileEntry, Index, PartEntry, StreamsEntry, read_index, write_index
from tvae.pipeline.latents.meta import LatentsMeta, PartRecord
from tvae.pipeline.latents.tensor_file import is_ours, read_header, read_tensors, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("tvae")

VIDEO_SUFFIX = ".latents"
PENDING = ".tvae-new"
STATE = ".tvae-state.safetensors"
_PART = re.compile(r"\d{6}\.safetensors")
_STREAMS = re.compile(r"streams[-.][\w.-]*")
_CLUTTER = {".ds_store", "thumbs.db", "desktop.ini"}  # file managers put these anywhere


class VideoLatentsWriter:
    """Writes one clip. Use as a context manager: leaving it without :meth:`commit` is :meth:`abort`, unless by an
    interruption (Ctrl-C, a full disk, or another failure that is not the input's): then the parts stay for the next
    run.

    `OutputError` when `folder` cannot be written, `InputError` when it holds something else than latents of tvae; with
    `overwrite` it is taken over all the same: files that bear our names are replaced, others stay.
    """

    def __init__(self, folder: Path, meta: LatentsMeta, *, overwrite: bool = False) -> None:
        self.folder, self.meta = folder, meta
        self._parts: list[PartEntry] = []
        self._streams: set[str] = set()
        self._open = True
        self._created = not folder.exists()
        check_folder_place(folder, overwrite=overwrite)
        self._work = folder / PENDING if (folder / INDEX_NAME).exists() else folder
        make_own_folder(self._work)

    @property
    def streams_stem(self) -> Path:
        """Where the source's other streams go, without suffix: for `media.copy_streams`."""
        return self._work / "streams"

    @property
    def state_path(self) -> Path:
        """Where whoever writes may keep what it needs to go on with; removed with the parts, and on commit."""
        return self._work / STATE

    @property
    def parts(self) -> int:
        """How many there are so far."""
        return len(self._parts)

    @property
    def frames(self) -> int:
        """Of the parts so far."""
        return self._parts[-1].first_frame + self._parts[-1].frames if self._parts else 0

    def adopt(self, parts: int) -> bool:
        """Take over the first ``parts`` parts of an interrupted run; the next :meth:`add` goes on behind them.

        False, and nothing is taken over, where they are not all there, are damaged, or are not of this very clip.
        """
        entries: list[PartEntry] = []
        wanted, frames = self.meta.to_json(), 0
        for number in range(parts):
            path = self._work / _name(number)
            try:
                _, meta, part, checksum, _ = read_tensors(path)
                size = path.stat().st_size
            except (InputError, OSError):
                return False
            if meta.to_json() != wanted or (part.index, part.first_frame) != (number, frames):
                return False
            entries.append(PartEntry(path.name, frames, len(part.pts), size, checksum))
            frames += len(part.pts)
        self._parts = entries
        return True

    def add(
        self,
        tensors: Mapping[str, Tensor],
        pts: Sequence[int | None],
        durations: Sequence[int | None],
        repeated: int = 0,
    ) -> None:
        """Write the next part: [C, t, h, w] tensors of `len(pts)` frames, in order of presentation.

        `repeated`: how often the last frame was repeated to fill the chunk of a video VAE. `InputError` for
        values that are not finite, `OutputError` for a full disk; the parts before it stay good.
        """
        first = self.frames
        part = PartRecord(len(self._parts), first, tuple(pts), tuple(durations), repeated)
        name = _name(part.index)
        written = write_tensors(self._work / name, tensors, self.meta, part)
        self._parts.append(PartEntry(name, first, len(pts), written.size, written.checksum))

    def commit(self, streams: Mapping[str, Any] | None = None, dropped: int = 0) -> None:
        """Make the folder complete. `InputError` for a clip without frames. `OutputError` where a part is gone, and
        then nothing is kept; and where the index cannot be written: then the parts stay.

        `dropped`: frames at the source's end that were left out. `streams`: JSON-able record of the files written
        under :attr:`streams_stem`, kept verbatim in the index.
        """
        if not self._parts:
            raise InputError(f"'{self.meta.source.name}': no frames to write")
        if not all(self._stands(part) for part in self._parts):
            self.abort()
            raise OutputError(f"cannot write {self.folder}: other programs changed its parts; run again")
        try:
            self._streams = {path.name for path in self._work.iterdir() if _STREAMS.fullmatch(path.name)}
            entry = None if streams is None else StreamsEntry(tuple(self._stream_files()), dict(streams))
            index = Index(self.meta, tuple(self._parts), entry, dropped)
            names = {file.file for file in index.files}
            if self._work != self.folder:
                (self.folder / INDEX_NAME).unlink()  # the old clip ends here; nothing may take a mixture for it
                flush_folder(self.folder)
                for name in sorted(names):
                    (self._work / name).replace(self.folder / name)
            _clear(self.folder, keep=names | {STATE})  # with which a run goes on where the index cannot be written
            flush_folder(self.folder)
            write_index(self.folder, index)
        except OSError as error:
            self._drop_streams()
            raise write_error(self.folder, error) from error
        self._open = False
        try:
            _clear(self.folder, keep=names | {INDEX_NAME})
        except OSError:  # the clip is complete; of all else the next run tries again
            _remove_by_name(self.folder, {STATE})

    def abort(self) -> None:
        """Take back what this writer wrote; an older complete clip in the folder stays as it was."""
        if not self._open:
            return
        self._open = False
        try:
            self._take_back()
        except OSError as error:  # the folder is gone, say; something else failed before, and is told
            _log.debug("left behind: %s", error)

    def _take_back(self) -> None:
        complete = (self.folder / INDEX_NAME).exists()  # the older clip, as long as commit has not begun
        _clear(self._work if complete else self.folder)
        if complete:
            self._work.rmdir()
        if self._created and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _stands(self, part: PartEntry) -> bool:
        """Is it there, as it was written?"""
        try:
            return (self._work / part.file).stat().st_size == part.bytes
        except OSError:
            return False

    def _drop_streams(self) -> None:
        """The next run copies them again; where a disk is full, their room is wanted."""
        for folder in (self._work, self.folder):
            if (folder / INDEX_NAME).exists():
                continue
            try:
                clear_folder(folder, lambda name: _STREAMS.fullmatch(name) is not None)
            except OSError:
                _remove_by_name(folder, self._streams)

    def _stream_files(self) -> Iterator[FileEntry]:
        for name in sorted(self._streams):
            path = self._work / name
            flush_file(path)
            yield FileEntry(name, path.stat().st_size, of_file(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        damaged = isinstance(error, TvaeError) and not isinstance(error, OutputError)
        if not self._parts or error is None or damaged:
            self.abort()
        elif self._open:
            self._drop_streams()


def tidy_done(folder: Path, fingerprint: str) -> None:
    """Remove what killed runs have left in a complete folder: the checkpoint, and a clip that was to replace it, unless
    that has a checkpoint of other options than those of the fingerprint, whose next run goes on with it.
    What cannot be removed stays, and all of it while another run is at work there."""
    pending = folder / PENDING
    if not (folder / STATE).exists() and not pending.is_dir():
        return
    with suppress(OSError, OutputError, OutputHeld), one_writer(folder, patience=0):
        clear_folder(folder, lambda name: name == STATE and (folder / INDEX_NAME).exists())
        if (folder / INDEX_NAME).exists() and _checkpoint_of(pending / STATE) in (None, fingerprint):
            _clear_pending(folder)


def _checkpoint_of(path: Path) -> str | None:
    """The fingerprint of what a checkpoint goes on with. None where there is none, or it is damaged."""
    try:
        return read_texts(path).get("fingerprint")
    except (OSError, ValueError):
        return None


def check_folder_place(folder: Path, *, overwrite: bool) -> None:
    """What `VideoLatentsWriter` raises for what is there already."""
    if is_link(folder):
        raise InputError(f"'{folder}' is a link; remove it, or choose another output with -o")
    if folder.exists() and not (overwrite and folder.is_dir()):
        _check_ours(folder)


def is_part_name(name: str) -> bool:
    """Whether a file of this name in a folder of latents is a part, or one of the source's other streams."""
    return any(pattern.fullmatch(name) for pattern in (_PART, _STREAMS))


def _name(part: int) -> str:
    return f"{part:06d}.safetensors"


def _clear(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove our own files in `folder` but those in `keep`, and what is pending."""
    _clear_pending(folder)
    clear_folder(folder, lambda name: _is_ours(name) and name not in keep)


def _clear_pending(folder: Path) -> None:
    pending = folder / PENDING
    if pending.is_dir() and not is_link(pending):
        clear_folder(pending, _is_ours)
        pending.rmdir()


def _remove_by_name(folder: Path, names: Collection[str]) -> None:
    """Where a folder cannot be opened, for want of rights or of descriptors: to remove a file takes neither."""
    for name in names if not is_link(folder) else ():
        discard(folder / name)


def _is_ours(name: str) -> bool:
    """Whether a file of this name in a folder of latents was made here."""
    return is_part_name(name) or name in (INDEX_NAME, STATE) or is_temporary(name)


def _check_ours(folder: Path) -> None:
    """`InputError` unless the folder is empty or holds latents of tvae, complete or not."""
    if not folder.is_dir():
        raise InputError(f"'{folder}' exists and is not a folder; move it away")
    names = os.listdir(folder)
    parts = sorted(name for name in names if _PART.fullmatch(name))
    # what is damaged is ours where something beside it is: it must not be in the way of being made again
    if STATE in names or PENDING in names or any(is_ours(folder / name) for name in parts):
        parts = []
    elif INDEX_NAME in names:
        read_index(folder)
    if INDEX_NAME in names:
        return
    for name in parts:
        read_header(folder / name)
    for name in names:
        ours = _is_ours(name) and (folder / name).is_file()
        if not (ours or name == PENDING or name.lower() in _CLUTTER):
            raise InputError(f"'{folder}' holds something that tvae did not write ('{name}'); move it away")
