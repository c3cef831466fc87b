"""All kinds of stores, in one table: how each is opened, and how it tells that a file has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tvae.pipeline.stores import gcs, hub, s3, web

__all__ = ["KINDS", "StoreKind"]

Entry = Mapping[str, Any]
"""What a file system of fsspec says of a file."""


def _info(files: Any, key: str) -> Entry:
    files.invalidate_cache()
    found: Entry = files.info(key)
    return found


def _put(files: Any, source: str, key: str) -> None:
    files.put_file(source, key)


def _remove(files: Any, key: str) -> None:
    files.rm_file(key)


@dataclass(frozen=True, eq=False)
class StoreKind:
    """One kind of store."""

    scheme: str
    """Of its URLs, without ``://``."""
    package: str
    """That has its file system."""
    install: str
    """What to install where the package is missing."""
    opened: Callable[[], Any]
    """Makes a file system of fsspec that nobody else uses. Imports the package; asks no network that the user has not
    named, but for the place where a machine in a cloud finds its own credentials."""
    version: Callable[[Entry], str | None]
    """Tells one content of a file from another; None where the store does not."""
    changed: Callable[[Entry], Any]
    """When the file was changed: a datetime, or None."""
    fetched: Mapping[str, Any]
    """Keywords of ``get_file``: so little is held in memory, however large a file is."""
    root: Callable[[str], str]
    """Of a key: that of the bucket or repository that has to be there."""
    find_root: Callable[[Any, str], object] = _info
    """Asks a file system for that; an error where it is not there."""
    info: Callable[[Any, str], Entry] = _info
    """Asks it for a file or a folder; the same."""
    put: Callable[[Any, str, str], None] = _put
    """Sends a file, by its path and its key. Little is held in memory, however large it is."""
    remove: Callable[[Any, str], None] = _remove
    transfer: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around each file that is sent or fetched."""
    is_written: bool = True
    is_listed: bool = True
    """It has folders to list."""
    whole_url: bool = False
    """The file system wants the whole URL, and not what follows the scheme."""
    credentials: str = ""
    """Where the user puts them, for messages."""

    def __reduce__(self) -> tuple[Callable[[str], StoreKind], tuple[str]]:
        return _kind_of, (self.scheme,)


def _kind_of(scheme: str) -> StoreKind:
    return KINDS[scheme]


def _first_part(key: str) -> str:
    return key.partition("/")[0]


KINDS: Mapping[str, StoreKind] = {
    kind.scheme: kind
    for kind in (
        StoreKind(
            "s3",
            "s3fs",
            "tvae[remote]",
            s3.opened,
            s3.version,
            s3.changed,
            s3.FETCHED,
            _first_part,
            put=s3.put,
            credentials=s3.CREDENTIALS,
        ),
        StoreKind(
            "gs",
            "gcsfs",
            "tvae[remote,gcs]",
            gcs.opened,
            gcs.version,
            gcs.changed,
            gcs.FETCHED,
            _first_part,
            find_root=gcs.find_root,
            put=gcs.put,
            credentials=gcs.CREDENTIALS,
        ),
        StoreKind(
            "hf",
            "huggingface_hub",
            "huggingface_hub",
            hub.opened,
            hub.version,
            hub.changed,
            {},
            hub.root,
            info=hub.info,
            put=hub.put,
            remove=hub.remove,
            transfer=hub.transfer,
            credentials=hub.CREDENTIALS,
        ),
        *(
            StoreKind(
                scheme,
                "aiohttp",
                "tvae[remote]",
                web.opened,
                web.version,
                web.changed,
                {},
                lambda key: key,
                is_written=False,
                is_listed=False,
                whole_url=True,
            )
            for scheme in ("https", "http")
        ),
    )
}
"""By scheme."""
