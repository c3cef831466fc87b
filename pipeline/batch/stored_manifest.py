"""The manifest of outputs in a store. It is written on this machine; a copy goes to the store now and then, and at the
end, and what the store has is read before anything else."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path

from tvae.pipeline.batch.manifest import Manifest
from tvae.pipeline.batch.manifest_lines import State
from tvae.pipeline.batch.records import in_store, records_of, send_record
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import TvaeError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.own_file import check_own
from tvae.pipeline.files.own_folder import make_own_folder
from tvae.pipeline.files.staging import scratch_folder
from tvae.pipeline.jobs.events import Made
from tvae.pipeline.jobs.facts import made_of
from tvae.pipeline.jobs.remote.uploads import Uploads

__all__ = ["StoredManifest"]

_log = logging.getLogger("tvae")
SEND_SECONDS = 300.0
"""Between two copies: what a machine did whose disk is lost is told from the outputs, each of which is read for it."""


class StoredManifest(Manifest):
    """See ``Manifest``. output: the URL that outputs go below."""

    _waits = False  # this machine's disk is not the one that outputs wait for

    def __init__(self, output: str, uploads: Uploads, shard: Shard | None = None) -> None:
        super().__init__(records_of(output), shard)
        self._output, self._uploads = output, uploads
        self._start = f"{output}/"
        self._sent_at, self._sending = time.monotonic(), threading.Thread()
        self._in_store = ""
        """Checksum of what the store has."""
        make_own_folder(self._folder)

    def _write(self) -> None:
        super()._write()
        due = time.monotonic() - self._sent_at > SEND_SECONDS
        if due and self._path.exists() and not self._sending.is_alive():
            self._sent_at = time.monotonic()
            self._sending = threading.Thread(target=self._send_copy, name="tvae-sends-manifest", daemon=True)
            self._sending.start()

    def made(self, output: Path) -> Made:
        with self._uploads.reading(output) as copy:
            return self._uploads.as_stored(output, made_of(copy))

    def _bring(self) -> None:
        """Of an output that both have a line of, the store's counts. Where that is the older one, the output is looked
        at."""
        with in_store(self._output, self._path.name) as theirs:
            if theirs is None:
                return
            check_own(theirs, "manifest", f"{self._output}/{self._path.name}")
            self._in_store = of_file(theirs)
            if not self._path.exists() or of_file(self._path) != self._in_store:
                self._add_lines(theirs)

    def _add_lines(self, theirs: Path) -> None:
        with replacing(self._path) as temporary, temporary.open("wb") as both:
            for one in (self._path, theirs) if self._path.exists() else (theirs,):
                with open_regular(one) as lines:
                    shutil.copyfileobj(lines, both)
                both.write(b"\n")  # after half a line; an empty one says nothing

    def _send(self) -> None:
        if self._sending.is_alive():
            self._sending.join()
        if self._path.exists() and of_file(self._path) != self._in_store:
            send_record(self._output, self._path)

    def _send_copy(self) -> None:
        """Of what is written so far. What goes wrong does not matter: all of it is sent in the end."""
        try:
            with scratch_folder() as folder:
                send_record(self._output, Path(shutil.copy(self._path, folder)))
        except (OSError, TvaeError) as error:
            _log.info("the manifest is not sent to %s yet: %s", self._output, error)

    def _name(self, output: Path) -> str:
        return super()._name(self._uploads.path(output) if self._uploads.holds(output) else output)

    def _state(self, output: Path) -> State:
        file = self._uploads.stored(output)
        if file is None:
            raise FileNotFoundError(f"{output} is not in the store")
        return file.size, file.mtime_ns, file.version
