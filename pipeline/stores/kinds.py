"""All kinds of stores, in one table: how each is opened, and how it tells that a file has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvae.pipeline.stores import gcs, hub, s3, web

__all__ = ["KINDS", "StoreKind"]

Entry = Mapping[str, Any]
"""What a file system of fsspec says of a file."""


def _info(files: Any, key: str) -> object:
    return files.info(key)


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
    sent: Mapping[str, Any]
    """Keywords of ``put_file``: so little is held in memory, however large a file is."""
    fetched: Mapping[str, Any]
    """The same of ``get_file``."""
    root: Callable[[str], str]
    """Of a key: that of the bucket or repository that has to be there."""
    find_root: Callable[[Any, str], object] = _info
    """Asks a file system for that; an error where it is not there."""
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
            s3.SENT,
            s3.FETCHED,
            _first_part,
            credentials=s3.CREDENTIALS,
        ),
        StoreKind(
            "gs",
            "gcsfs",
            "tvae[remote,gcs]",
            gcs.opened,
            gcs.version,
            gcs.changed,
            gcs.SENT,
            gcs.FETCHED,
            _first_part,
            find_root=gcs.find_root,
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
            {},
            hub.root,
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
