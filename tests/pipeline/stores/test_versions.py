"""What tells contents apart, as the file systems of fsspec say it. The entries are those of their documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tvae.pipeline.stores import KINDS

MOMENT = datetime(2026, 11, 25, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("scheme", "entry", "version", "changed"),
    [
        ("s3", {"ETag": '"abc"', "LastModified": MOMENT}, "abc", MOMENT),
        ("s3", {}, None, None),
        ("gs", {"generation": "17", "etag": "x", "mtime": MOMENT}, "17", MOMENT),
        ("gs", {"etag": "x", "updated": MOMENT}, "x", MOMENT),
        ("gs", {}, None, None),
        ("hf", {"blob_id": "b", "lfs": {"sha256": "s"}}, "s", None),
        ("hf", {"blob_id": "b", "lfs": None}, "b", None),
        ("https", {"ETag": '"e"', "Last-Modified": "Wed, 25 Nov 2026 12:00:00 GMT"}, '"e"', MOMENT),
        (
            "https",
            {"Last-Modified": "Wed, 25 Nov 2026 12:00:00 GMT"},
            "Wed, 25 Nov 2026 12:00:00 GMT",
            MOMENT,
        ),
        ("https", {"Last-Modified": "yesterday"}, "yesterday", None),
        ("https", {}, None, None),
    ],
)
def test_versions(scheme: str, entry: dict[str, Any], version: str | None, changed: datetime | None) -> None:
    kind = KINDS[scheme]
    assert kind.version(entry) == version
    assert kind.changed(entry) == changed
