"""Errors of libraries become one line without secrets."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.stores import StoreError, parse_url
from tvae.pipeline.stores.errors import told

PLACE = parse_url("s3://b/a.png")
WEB = parse_url("https://me:secret@h/a.png?sig=secret")
HINT = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


def named(name: str, *arguments: Any, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    error: Exception = type(name, (base,), {})(*arguments)
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


def of_s3(code: str, status: int) -> Exception:
    response = {"Error": {"Code": code, "Message": "AKIASECRET"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return named("ClientError", "AKIASECRET", response=response)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("AKIASECRET"), f"no permission; {HINT}"),
        (of_s3("AccessDenied", 403), f"no permission; {HINT}"),
        (named("NoCredentialsError", "x"), f"no credentials were found; {HINT}"),
        (FileNotFoundError("x"), "it does not exist"),
        (of_s3("NoSuchKey", 404), "it does not exist"),
        (named("EndpointConnectionError", "x"), "the server cannot be reached; check the address and the network"),
        (named("ReadTimeoutError", "x"), "the server does not answer; run again"),
        (TimeoutError(), "the server does not answer; run again"),
        (named("ClientPayloadError", "x"), "the connection was lost; run again"),
        (ConnectionResetError(), "the connection was lost; run again"),
        (of_s3("QuotaExceeded", 400), "there is no room left; make room or choose another output with -o"),
        (of_s3("XMinioStorageFull", 507), "there is no room left; make room or choose another output with -o"),
        (of_s3("SlowDown", 503), "the server answers 503 SlowDown; run again"),
        (of_s3("a b\nAKIASECRET", 500), "the server answers 500; run again"),
        (named("ClientResponseError", "x", status=500), "the server answers 500; run again"),
        (named("HttpError", "ya29.SECRET", code=401), f"no permission; {HINT}"),
        (
            named("HttpError", "ya29.SECRET", code=507),
            "there is no room left; make room or choose another output with -o",
        ),
        (named("HttpError", "ya29.SECRET", code=429), "the server answers 429; run again"),
        (OSError("Forbidden: https://h/b\nya29.SECRET"), f"no permission; {HINT}"),
        (ValueError("two\nlines at https://u:secret@h/p?k=secret now"), "two lines at https://h/p now"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 1000), "x" * 200),
    ],
)
def test_one_line(error: Exception, message: str) -> None:
    with pytest.raises(StoreError) as raised, told(PLACE, "read"):
        raise error
    assert str(raised.value) == f"cannot read s3://b/a.png: {message}"
    assert raised.value.__cause__ is None
    assert raised.value.missing == (message == "it does not exist")
    assert raised.value.denied == ("permission" in message or "credentials" in message)
    may_pass = ("no room", "server answers 50", "run again", "be reached")
    assert raised.value.passing == any(words in message for words in may_pass)


@pytest.mark.parametrize(("status", "passing"), [(400, False), (412, False), (429, True), (502, True)])
def test_what_may_pass(status: int, passing: bool) -> None:
    with pytest.raises(StoreError) as raised, told(PLACE, "write"):
        raise of_s3("Some", status)
    assert raised.value.passing == passing


def test_causes_count() -> None:
    """HTTPFileSystem says of all failures that there is no such file."""
    for cause, message in (
        (named("ClientConnectorError", "x"), "the server cannot be reached"),
        (named("ClientResponseError", "x", status=401), "no permission"),
        (named("ClientResponseError", "x", status=404), "it does not exist"),
        (named("ClientResponseError", "x", status=500), "the server answers 500"),
    ):
        with pytest.raises(StoreError, match=f"^cannot read https://h/a.png: {message}"), told(WEB, "read"):
            raise FileNotFoundError(WEB.key) from cause


def test_what_the_system_says_of_a_file_here(tmp_path: Path) -> None:
    here = tmp_path / "a.png"
    for error in (OSError(errno.ENOSPC, "full"), PermissionError(errno.EACCES, "no", str(here))):
        with pytest.raises(OSError) as raised, told(PLACE, "read", here=here):  # noqa: PT011, compared below
            raise error
        assert raised.value is error
    with pytest.raises(StoreError), told(PLACE, "read", here=here):
        raise PermissionError(errno.EACCES, "no", "elsewhere")


def test_a_store_error_passes_as_it_is() -> None:
    wanted = StoreError("said")
    with pytest.raises(StoreError) as raised, told(PLACE, "read"):
        raise wanted
    assert raised.value is wanted
