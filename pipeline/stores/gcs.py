"""Google Cloud Storage."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login"

FETCHED: Mapping[str, Any] = {"headers": {}}
"""Headers of the caller's, even none, make gcsfs stream; else it holds 128 MiB of a file in memory."""

_PIECE = 16 << 20
_CONNECT_SECONDS, _READ_SECONDS = 15, 60


def opened() -> Any:
    """With the credentials that gcsfs finds, in its own order.

    Its core alone, which asks by HTTP. What is around that asks by gRPC first what kind of bucket it is, warns of each
    time that it is not told, and appends to objects of zonal buckets, which are there then before they are complete.
    """
    from aiohttp import ClientTimeout
    from gcsfs.core import GCSFileSystem

    logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # else each failure has a traceback on standard error
    waits = ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)  # else 5 minutes a file
    return GCSFileSystem(requests_timeout=waits, skip_instance_cache=True, use_listings_cache=False)


def put(files: Any, source: str, key: str) -> None:
    files.put_file(source, key, chunksize=_PIECE)


def find_root(files: Any, bucket: str) -> None:
    """By listing it: roles for objects do not have the right to look at the bucket itself."""
    files.ls(bucket, max_results=1)


def version(entry: Mapping[str, Any]) -> str | None:
    """The generation is new each time that an object is written."""
    tag = entry.get("generation") or entry.get("etag") or entry.get("md5Hash")
    return None if tag is None else str(tag)


def changed(entry: Mapping[str, Any]) -> Any:
    return entry.get("mtime") or entry.get("updated")
