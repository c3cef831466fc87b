"""What there is of results in a store: as it was listed, and as it was sent since."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tvae.pipeline import latents
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.stores import RemoteFile

__all__ = ["There"]


class There:
    """Any thread may ask and put. A key is that of a file, or of the folder of a clip's latents."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, RemoteFile] = {}
        self._clips: dict[str, dict[str, RemoteFile]] = {}
        """The same of clips' latents: their files, by their folder's key and their own."""

    def put(self, key: str, files: Iterable[RemoteFile]) -> None:
        """These are all that there is now of a file, a clip, or (an empty key) of everything."""
        with self._lock:
            for old in self._clips.pop(key, {}):
                del self._files[old]
            self._files.pop(key, None)
            for file in files:
                self._files[file.place.key] = file
                above = file.place.key.rpartition("/")[0]
                if above.endswith(latents.VIDEO_SUFFIX):
                    self._clips.setdefault(above, {})[file.place.key] = file

    def file(self, key: str) -> RemoteFile | None:
        """None: there is none of this very key."""
        return self._files.get(key)

    def parts(self, key: str) -> list[RemoteFile]:
        """The files of a clip's latents."""
        with self._lock:
            return [*self._clips.get(key, {}).values()]

    def result(self, key: str) -> RemoteFile | None:
        """A file; of a clip's latents, their index."""
        return self._files.get(key) or self._files.get(f"{key}/{INDEX_NAME}")
