"""One store, opened when it is first asked: looks, lists, fetches and sends. Any thread may ask."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import UsageError
from tvae.pipeline.stores.errors import StoreError, told
from tvae.pipeline.stores.kinds import StoreKind
from tvae.pipeline.stores.place import Place

__all__ = ["RemoteFile", "Store"]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, or a folder, as its store listed it."""

    store: Store = field(compare=False, repr=False)
    place: Place
    size: int
    """In bytes; 0 of a folder."""
    mtime_ns: int
    """When it was changed, as the store says, in nanoseconds since 1970; 0 where it does not."""
    version: str | None
    """Of its content, as the store tells contents apart: an ETag, a generation, a checksum."""
    is_folder: bool = False

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def identity(self) -> str:
        """What tells it from other files and from other contents of its own, but for its size."""
        return f"{self.place.shown} {self.version or ''}".rstrip()


class Store:
    """Raises UsageError where its package is missing, and StoreError for all that the store does not do."""

    def __init__(self, kind: StoreKind) -> None:
        self.kind = kind
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[StoreKind], Store], tuple[StoreKind]]:
        return _of_this_process, (self.kind,)

    @cached_property
    def _opened(self) -> Any:
        kind = self.kind
        for package in ("fsspec", kind.package):
            if importlib.util.find_spec(package) is None:
                raise UsageError(f"{kind.scheme}:// needs the package {package}: pip install '{kind.install}'")
        return kind.opened()

    @property
    def _files(self) -> Any:
        with self._lock:
            return self._opened

    def look(self, key: str) -> RemoteFile | None:
        """What stands there now; None for nothing."""
        place, files = Place(self.kind, key), self._files
        try:
            with told(place, "read"):
                return self._file(self.kind.info(files, key), place)
        except StoreError as error:
            if error.missing:
                return None
            raise

    def has_root(self, place: Place) -> bool:
        """Whether the bucket or repository of a place is there."""
        root, files = Place(self.kind, self.kind.root(place.key)), self._files
        try:
            with told(root, "read"):
                self.kind.find_root(files, root.key)
        except StoreError as error:
            if error.missing:
                return False
            raise
        return True

    def inside(self, key: str, *, recursive: bool = False) -> list[RemoteFile]:
        """The files in a folder, and those in its subfolders or (not recursive) the subfolders, by name. A folder that
        is not there has none."""
        place, files = Place(self.kind, key), self._files
        try:
            with told(place, "list"):
                files.invalidate_cache()
                entries = files.find(key, detail=True).values() if recursive else files.ls(key, detail=True)
                return [*self._listed(entries, key)]
        except StoreError as error:
            if error.missing and "/" in key:
                return []
            raise

    def head(self, file: RemoteFile, count: int) -> bytes:
        """Its first bytes, so many at most."""
        with told(file.place, "read"):
            return bytes(self._files.cat_file(file.place.key, start=0, end=min(count, file.size)) if file.size else b"")

    def fetch(self, file: RemoteFile, target: Path) -> None:
        """All of it, as a new file. StoreError, too, where it is not what was listed; `OSError` where nothing can be
        written here."""
        target.touch(exist_ok=False)
        files = self._files
        with self.kind.transfer(), told(file.place, "read", here=target):
            files.invalidate_cache()
            files.get_file(file.place.key, str(target), **self.kind.fetched)
        if target.stat().st_size != file.size:
            raise StoreError(
                f"cannot read {file.place.shown}: {target.stat().st_size} bytes came instead of {file.size}"
            )
        now = self.look(file.place.key)
        if now is None or (now.size, now.version) != (file.size, file.version):
            raise StoreError(f"{file.place.shown} changed while it was read; run again")

    def send(self, source: Path, key: str) -> None:
        """A file of this machine, complete under its name there or not at all. `OSError` where it cannot be read."""
        with self.kind.transfer(), told(Place(self.kind, key), "write", here=source):
            self.kind.put(self._files, str(source), key)

    def remove(self, keys: Iterable[str]) -> None:
        """Files that may have gone."""
        for key in keys:
            try:
                with told(Place(self.kind, key), "remove"):
                    self.kind.remove(self._files, key)
            except StoreError as error:
                if not error.missing:
                    raise

    def _listed(self, entries: Iterable[Mapping[str, Any]], folder: str) -> Iterator[RemoteFile]:
        """Without what stands for the folder itself."""
        for entry in sorted(entries, key=lambda entry: str(entry["name"])):
            name = str(entry["name"]).rstrip("/")
            if name and name != folder and not (str(entry["name"]).endswith("/") and entry["type"] == "file"):
                yield self._file(entry, Place(self.kind, name))

    def _file(self, entry: Mapping[str, Any], place: Place) -> RemoteFile:
        folder, size = entry["type"] == "directory", entry.get("size")
        if not folder and size is None:
            raise StoreError(f"cannot read {place.shown}: the server does not say how many bytes it has")
        return RemoteFile(
            self,
            place,
            0 if folder else int(size or 0),
            _nanoseconds(self.kind.changed(entry)),
            None if folder else self.kind.version(entry),
            folder,
        )


@cache
def _of_this_process(kind: StoreKind) -> Store:
    """That files of other processes are in: opened once."""
    return Store(kind)


def _nanoseconds(changed: Any) -> int:
    if not isinstance(changed, datetime):
        return 0
    moment = changed if changed.tzinfo else changed.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp()) * 10**9)
