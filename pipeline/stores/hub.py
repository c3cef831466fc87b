"""Repositories of the Hugging Face hub: ``hf://datasets/USER/NAME/PATH``, ``hf://USER/MODEL/PATH``."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CREDENTIALS = "HF_TOKEN, or hf auth login"

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between tries of a commit that another one has overtaken, for which the hub answers 409 or 412."""
_committing = threading.Lock()
"""One commit of this process at a time: they would overtake one another."""


def opened() -> Any:
    """With the token that huggingface_hub finds."""
    from huggingface_hub import HfFileSystem

    return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)


class _Bars:
    """The hub's progress bars, one a file, across what the command shows: off while any thread has a transfer."""

    def __init__(self) -> None:
        self._lock, self._transfers, self._shown = threading.Lock(), 0, False

    def __enter__(self) -> None:
        from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars

        with self._lock:
            self._transfers += 1
            if self._transfers == 1 and not are_progress_bars_disabled():
                disable_progress_bars()
                self._shown = True

    def __exit__(self, *_: object) -> None:
        from huggingface_hub.utils import enable_progress_bars

        with self._lock:
            self._transfers -= 1
            if self._transfers == 0 and self._shown:
                enable_progress_bars()
                self._shown = False


_bars = _Bars()


def transfer() -> AbstractContextManager[None]:
    """Around each."""
    return _bars


def info(files: Any, key: str) -> Mapping[str, Any]:
    """Asks for this one. The file system itself would list the whole folder, and may have an older list of it."""
    from huggingface_hub.hf_api import RepoFile

    where = files.resolve_path(key)
    if not (path := getattr(where, "path_in_repo", "")):  # a repository, or what is in a bucket
        files.invalidate_cache()
        found: Mapping[str, Any] = files.info(key)
        return found
    told = _api(files).get_paths_info(paths=[path], **_repository(where))
    if not told:
        raise FileNotFoundError(key)
    if isinstance(one := told[0], RepoFile):
        return {"name": key, "type": "file", "size": one.size, "blob_id": one.blob_id, "lfs": one.lfs}
    return {"name": key, "type": "directory", "size": 0}


def put(files: Any, source: str, key: str) -> None:
    """The file as it is here. What the file system itself does copies it to the system's temporary folder first, and
    where that breaks off, it commits as much as it has."""
    from huggingface_hub import CommitOperationAdd

    where, api = files.resolve_path(key), _api(files)
    if (bucket := getattr(where, "bucket_id", None)) is not None:
        api.batch_bucket_files(bucket, add=[(source, where.path)])
        return
    files_of, adding = _repository(where), CommitOperationAdd(where.path_in_repo, source)
    api.preupload_lfs_files(additions=[adding], **files_of)  # the bytes of a large file; several may go at a time
    message = f"Upload {where.path_in_repo}"
    _commit(lambda: api.create_commit(operations=[adding], commit_message=message, **files_of))


def remove(files: Any, key: str) -> None:
    _commit(lambda: files.rm_file(key))


def _api(files: Any) -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=files.endpoint, token=files.token)


def _repository(where: Any) -> dict[str, Any]:
    return {"repo_id": where.repo_id, "repo_type": where.repo_type, "revision": where.revision}


def _commit(act: Callable[[], object]) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    for wait in (*WAITS, None):
        try:
            with _committing:
                act()
            return
        except HfHubHTTPError as error:
            if error.response.status_code not in (409, 412) or wait is None:
                raise
            time.sleep(wait * random.uniform(0.5, 1.5))


def version(entry: Mapping[str, Any]) -> str | None:
    """A large file's is the checksum of its content, a small one's that of its blob, that of one in a bucket the hub's
    own."""
    large = entry.get("lfs")
    tag = large.get("sha256") if isinstance(large, Mapping) else getattr(large, "sha256", None)
    tag = tag or entry.get("blob_id") or entry.get("xet_hash")
    return None if tag is None else str(tag)


def changed(entry: Mapping[str, Any]) -> Any:
    """A commit's time is another one's for each branch; the version says all."""
    return None


def root(key: str) -> str:
    """USER/NAME, with what kind of repository that is before it."""
    parts = key.split("/")
    return "/".join(parts[: 3 if parts[0] in ("datasets", "spaces", "buckets") else 2])
