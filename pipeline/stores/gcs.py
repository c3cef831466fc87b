"""Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login"


def opened() -> Any:
    """With the credentials that gcsfs finds, in its own order."""
    import gcsfs

    return gcsfs.GCSFileSystem(skip_instance_cache=True, use_listings_cache=False)


def version(entry: Mapping[str, Any]) -> str | None:
    """The generation is new each time that an object is written."""
    tag = entry.get("generation") or entry.get("etag") or entry.get("md5Hash")
    return None if tag is None else str(tag)


def changed(entry: Mapping[str, Any]) -> Any:
    return entry.get("mtime") or entry.get("updated")
