"""Amazon S3 and what speaks its language: MinIO, R2, Ceph and others, by ``AWS_ENDPOINT_URL``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"

_PIECE = 16 << 20
FETCHED = {"max_concurrency": 1}  # which streams; more hold a file of 500 MB in memory

_CONNECT_SECONDS, _READ_SECONDS = 15, 60


def opened() -> Any:
    """With the credentials, the region and the endpoint that botocore finds; without any, as a stranger."""
    import s3fs
    from botocore.session import get_session

    anonymous = get_session().get_credentials() is None
    config = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
    return s3fs.S3FileSystem(anon=anonymous, config_kwargs=config, skip_instance_cache=True, use_listings_cache=False)


def put(files: Any, source: str, key: str) -> None:
    files.put_file(source, key, chunksize=_PIECE, max_concurrency=2)


def version(entry: Mapping[str, Any]) -> str | None:
    tag = entry.get("ETag")
    return None if tag is None else str(tag).strip('"')


def changed(entry: Mapping[str, Any]) -> Any:
    return entry.get("LastModified")
