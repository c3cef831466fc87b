"""A store of S3's kind for the tests of this folder, and a bucket of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from stores import Bucket, S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> Iterator[Bucket]:
    yield Bucket(s3, f"photos-{uuid4().hex[:8]}")
    s3.fault = lambda _request: None
