"""What stores and their libraries raise, as one line without secrets."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.stores.place import Place

__all__ = ["StoreError", "told"]

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_URLS = re.compile(r"(https?://)(?:[^\s/'\"@]*@)?([^\s?'\"]*)(?:\?[^\s'\"]*)?")
_LOST = frozenset(
    {
        "ClientPayloadError",
        "ServerDisconnectedError",
        "IncompleteReadError",
        "ResponseStreamingError",
        "ClientOSError",
        "ConnectionClosedError",
        "HTTPClientError",
        "RemoteProtocolError",
        "ReadError",
    }
)
_UNREACHED = frozenset(
    {
        "ClientConnectorError",
        "EndpointConnectionError",
        "ClientConnectorDNSError",
        "ConnectError",
        "ConnectionRefusedError",
        "ConnectTimeoutError",
        "LocalEntryNotFoundError",
        "ProxyConnectionError",
    }
)
_NO_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "RefreshError",
        "ProfileNotFound",
    }
)
_DENIED = frozenset({"GatedRepoError", "Forbidden"})
_MISSING = frozenset(
    {"RepositoryNotFoundError", "EntryNotFoundError", "RevisionNotFoundError", "NoSuchBucket", "NoSuchKey"}
)
"""Names of classes: libraries that are not imported need not be, to be told apart."""
_NO_ROOM = "there is no room left; make room or choose another output with -o"
_LATER = (408, 425, 429)
"""Statuses that ask to try again."""
_LONGEST = 200


class StoreError(Exception):
    """A store does not give, or take, what it was asked for. Its message is one line. missing: there is no such file,
    folder or bucket. denied: there may be, for others. passing: it may be over a little later."""

    def __init__(self, message: str, *, missing: bool = False, denied: bool = False, passing: bool = True) -> None:
        self.missing, self.denied, self.passing = missing, denied, passing and not (missing or denied)
        super().__init__(message)


@contextmanager
def told(place: Place, verb: str, here: Path | None = None) -> Iterator[None]:
    """verb: what was tried, such as ``read``. here: the file of this machine that it was tried with; what the system
    says of that passes as it is, an `OSError`."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        if here is not None and (error.filename == str(here) or error.errno in _FULL):
            raise
        raise _store_error(error, f"cannot {verb} {place.shown}", place) from None
    except Exception as error:  # libraries raise their own kinds, and all of them are told
        raise _store_error(error, f"cannot {verb} {place.shown}", place) from None


def _store_error(error: Exception, what: str, place: Place) -> StoreError:
    """By the error or what it came from."""
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    status = next((number for one in _chain(error) if (number := _status(one)) is not None), None)
    hint = f"; check {place.kind.credentials}" if place.kind.credentials else ""
    if isinstance(error, PermissionError) or kinds & _DENIED or status in (401, 403):
        return StoreError(f"{what}: no permission{hint}", denied=True)
    if kinds & _NO_CREDENTIALS:
        return StoreError(f"{what}: no credentials were found{hint}", denied=True)
    if "OfflineModeIsEnabled" in kinds:
        offline = "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set; unset it, or use files of this machine"
        return StoreError(f"{what}: {offline}", passing=False)
    if (way := _of_the_way(kinds)) is not None:  # before what a web server's file system makes of it: no such file
        return StoreError(f"{what}: {way}")
    if status in (404, 410) or (status is None and (isinstance(error, FileNotFoundError) or kinds & _MISSING)):
        return StoreError(f"{what}: it does not exist", missing=True)
    code = next((code for one in _chain(error) if (code := _code(one)) is not None), None)
    reason = _reason(error, status, code)
    passing = isinstance(error, OSError) if status is None else status >= 500 or status in _LATER
    return StoreError(f"{what}: {reason}", passing=passing or reason == _NO_ROOM)


def _of_the_way(kinds: Collection[str]) -> str | None:
    """What is wrong with the way there, if that is it."""
    if any(kind in _UNREACHED for kind in kinds):
        return "the server cannot be reached; check the address and the network"
    if any("Timeout" in kind for kind in kinds):
        return "the server does not answer; run again"
    if any(kind in _LOST or kind == "ConnectionError" for kind in kinds):
        return "the connection was lost; run again"
    return None


def _reason(error: Exception, status: int | None, code: str | None) -> str:
    """What a server says may hold the name of a key: its code is shown, not its text."""
    if status == 507 or (code is not None and any(word in code for word in ("Quota", "StorageFull", "Insufficient"))):
        return _NO_ROOM
    if code is not None or status is not None:
        return f"the server answers {' '.join(str(one) for one in (status, code) if one is not None)}; run again"
    return _cleaned(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    """Of an answer over HTTP."""
    response = getattr(error, "response", None)
    of_s3 = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):  # gcsfs has words for this one
        return 403
    is_of_gcs = type(error).__name__ == "HttpError"  # others have a code that is something else
    of_gcs = getattr(error, "code", None) if is_of_gcs else None
    for code in (getattr(error, "status", None), getattr(response, "status_code", None), of_s3, of_gcs):
        if isinstance(code, int):
            return code
    return None


def _code(error: BaseException) -> str | None:
    """Of an answer of S3."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return code if isinstance(code, str) and code.isascii() and code.isalnum() and not code.isdigit() else None


def _cleaned(error: Exception) -> str:
    """What the library says, in one line, its URLs without passwords and queries."""
    text = (getattr(error, "strerror", None) if isinstance(error, OSError) else None) or str(error)
    line = " ".join(str(text).split()) or type(error).__name__
    return _URLS.sub(r"\1\2", line)[:_LONGEST]
