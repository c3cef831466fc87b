"""URLs of files: what one says, and what of it may be shown."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tvae.pipeline.errors import UsageError
from tvae.pipeline.stores.kinds import KINDS, StoreKind

__all__ = ["Place", "RemotePath", "is_url", "parse_url", "shown_path"]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
"""A letter alone is a drive of Windows."""

if TYPE_CHECKING:
    _Base = Path
else:
    _Base = type(Path())


class RemotePath(_Base):
    """The name of a file elsewhere, for events and messages: its text is its URL. Nothing on this machine has it."""

    def __str__(self) -> str:
        return super().__str__().replace(os.sep, "/").replace(":/", "://", 1)


@dataclass(frozen=True, slots=True)
class Place:
    """What a URL leads to."""

    kind: StoreKind
    key: str
    """As its file system wants it: bucket and key, or a whole URL, which may carry credentials."""

    @property
    def shown(self) -> str:
        """The URL without what may be secret: user and password, and the query that a signed URL has."""
        if not self.kind.whole_url:
            return f"{self.kind.scheme}://{self.key}"
        parts = urlsplit(self.key)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def path(self) -> RemotePath:
        return RemotePath(self.shown)

    @property
    def name(self) -> str:
        """The last part of its path; empty where that is a folder's."""
        if self.kind.whole_url:
            return unquote(urlsplit(self.key).path).rpartition("/")[2]
        return self.key.rpartition("/")[2]


def is_url(name: str) -> bool:
    """Whether a name is a URL, of a store that is known or of another."""
    return _URL.match(name) is not None


def parse_url(name: str) -> Place:
    """Where a URL leads to. Raises UsageError for a kind of store there is none of, and for one that names nothing."""
    match = _URL.match(name)
    assert match is not None, "asked for what is no URL"
    scheme, rest = match[1].lower(), name[match.end() :]
    kind = KINDS.get(scheme)
    if kind is None:
        known = ", ".join(f"{one}://" for one in KINDS)
        raise UsageError(f"{scheme}:// is not supported; use one of {known}, or a file on this machine")
    place = Place(kind, f"{scheme}://{rest}" if kind.whole_url else rest.rstrip("/"))
    if not (rest.partition("/")[0] if kind.whole_url else rest.strip("/")):
        raise UsageError(f"{scheme}:// names no {'server' if kind.whole_url else 'bucket'}")
    return place


def shown_path(url: str) -> Path:
    """A URL as messages have it. What cannot be parsed is not shown but for its beginning: it may hold a password."""
    try:
        return parse_url(url).path
    except UsageError:
        return Path(url.partition("://")[0])
