"""URLs: where they lead, and that what is shown of them holds no secret."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.stores import KINDS, RemotePath, is_url, parse_url, shown_path


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("s3://bucket/a.png", True),
        ("HTTPS://host/a.png", True),
        ("gs://b", True),
        ("nfs://host/a", True),
        ("C://folder/a.png", False),
        ("c:\\a.png", False),
        ("/tmp/s3:/a.png", False),
        ("a://", False),
        ("photos", False),
        ("", False),
    ],
)
def test_what_is_a_url(name: str, url: bool) -> None:
    assert is_url(name) == url


@pytest.mark.parametrize(
    ("url", "key", "shown", "name"),
    [
        ("s3://bucket/a/b.png", "bucket/a/b.png", "s3://bucket/a/b.png", "b.png"),
        ("S3://bucket/a/", "bucket/a", "s3://bucket/a", "a"),
        ("s3://bucket", "bucket", "s3://bucket", "bucket"),
        ("s3://bucket/a?b#c.png", "bucket/a?b#c.png", "s3://bucket/a?b#c.png", "a?b#c.png"),
        ("hf://datasets/me/x/a.png", "datasets/me/x/a.png", "hf://datasets/me/x/a.png", "a.png"),
        ("https://h/a%20b.png", "https://h/a%20b.png", "https://h/a%20b.png", "a b.png"),
        ("https://me:pw@h:81/a.png?sig=s#f", "https://me:pw@h:81/a.png?sig=s#f", "https://h:81/a.png", "a.png"),
        ("https://h/a/", "https://h/a/", "https://h/a/", ""),
        ("https://h/%2e%2e%2fa.png", "https://h/%2e%2e%2fa.png", "https://h/%2e%2e%2fa.png", "a.png"),
    ],
)
def test_where_it_leads(url: str, key: str, shown: str, name: str) -> None:
    place = parse_url(url)
    assert (place.key, place.shown, place.name) == (key, shown, name)
    assert str(place.path) == shown.rstrip("/")


@pytest.mark.parametrize("url", ["s3://", "s3:///", "https://", "https:///a", "ftp://me:secret@host/a", "x-y.z+1://q"])
def test_what_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_url(url)
    assert "secret" not in str(raised.value)
    assert "secret" not in str(shown_path(url))


def test_a_remote_path_is_a_path() -> None:
    path = RemotePath("s3://bucket/a/b.c.png")
    assert isinstance(path, Path)
    assert (str(path), f"{path}", path.as_posix()) == ("s3://bucket/a/b.c.png",) * 3
    assert (path.name, path.suffix, path.stem) == ("b.c.png", ".png", "b.c")
    assert str(path.parent) == "s3://bucket/a"
    assert str(path.parent / "x") == "s3://bucket/a/x"
    assert str(path.with_suffix(".jpg")) == "s3://bucket/a/b.c.jpg"
    assert path == RemotePath("s3://bucket/a/b.c.png")
    assert len({path, RemotePath("s3://bucket/a/b.c.png"), RemotePath("s3://bucket/b")}) == 2
    for other in (copy.deepcopy(path), pickle.loads(pickle.dumps(path))):
        assert (type(other), str(other)) == (RemotePath, str(path))
    assert not path.exists()


def test_every_kind_of_store_says_all() -> None:
    for scheme, kind in KINDS.items():
        assert kind.scheme == scheme
        assert kind.install
        assert kind.whole_url == (scheme in ("https", "http"))
        assert kind.is_written == kind.is_listed == (not kind.whole_url)
    roots = {"s3": "b", "gs": "b", "hf": "b/c"}
    assert {scheme: KINDS[scheme].root("b/c/d") for scheme in roots} == roots
    assert KINDS["hf"].root("datasets/b/c/d") == "datasets/b/c"
