"""A store of S3's kind for the tests that ask for one, and a bucket of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from stores import Bucket, S3Server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    from stores import s3_server  # most tests do without what it imports

    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> Iterator[Bucket]:
    from stores import Bucket

    yield Bucket(s3, f"photos-{uuid4().hex[:8]}")
    s3.fault = lambda _request: None
