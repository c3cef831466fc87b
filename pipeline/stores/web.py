"""Files of web servers, which are only read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

_CONNECT_SECONDS, _READ_SECONDS = 15, 60


def opened() -> Any:
    """Waits for a server that answers slowly, however large a file is, and not for one that does not."""
    import aiohttp
    from fsspec.implementations.http import HTTPFileSystem

    waits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
    return HTTPFileSystem(
        client_kwargs={"timeout": waits, "trust_env": True}, skip_instance_cache=True, use_listings_cache=False
    )


def version(entry: Mapping[str, Any]) -> str | None:
    tag = entry.get("ETag") or entry.get("Last-Modified")
    return None if tag is None else str(tag)


def changed(entry: Mapping[str, Any]) -> Any:
    with suppress(TypeError, ValueError):
        return parsedate_to_datetime(entry["Last-Modified"]) if "Last-Modified" in entry else None
    return None
