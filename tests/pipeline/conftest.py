"""Stores for the tests that ask for one, and a bucket of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from google_store import GoogleBucket, GoogleServer
    from stand_in_hub import Hub
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


@pytest.fixture(scope="module")
def google_server() -> Iterator[GoogleServer]:
    from google_store import google_server

    with google_server() as server:
        yield server


@pytest.fixture
def google(google_server: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleBucket]:
    from google_store import GoogleBucket

    async def at_once(_seconds: float) -> None:
        """Waits of gcsfs between tries take seconds."""

    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=at_once))
    yield GoogleBucket(google_server, f"photos-{uuid4().hex[:8]}")
    google_server.fault = lambda _request: None


@pytest.fixture
def hub() -> Iterator[Hub]:
    from stand_in_hub import hub_server

    with hub_server() as found:
        yield found
