"""webdataset's shards: what webdataset itself reads, and bytes that do not change."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from tvae.pipeline.caches.shards import Sample, key_of
from tvae.pipeline.caches.shards.tar import WEBDATASET

SETTINGS: dict[str, Any] = {"flip": True, "limit": 10**9}


def sample(key: str = "a/b", seed: int = 0, **fields: Any) -> Sample:
    values = np.random.default_rng(seed).integers(-8, 8, (2, 4, 3, 5)).astype(np.float32) / 4
    texts = fields.pop("texts", {"txt": b"a caption", "json": b'{"of": "the source"}'})
    return Sample(key, values[0], {"crop": [0, 1, 2, 3]}, values[1], texts, **fields)


def written(path: Path, *samples: Sample) -> Path:
    parts = [WEBDATASET.sample(one) for one in samples]
    content = WEBDATASET.head([len(part) for part in parts], SETTINGS) + b"".join(parts)
    path.write_bytes(content + WEBDATASET.tail(len(content)))
    assert path.stat().st_size == WEBDATASET.size(len(parts), sum(map(len, parts)), SETTINGS)
    return path


def test_members_by_tarfile(tmp_path: Path) -> None:
    long = "f" * 90 + "/" + "ü" * 80
    path = written(tmp_path / "0.tar", sample(), sample(long, 1))
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [
            f"{key}.{end}"
            for key in ("a/b", long)
            for end in ("latent.npy", "flipped.npy", "json", "source.json", "txt")
        ]
        facts = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.type) for m in members}
        assert facts == {(0, 0, 0, "", "", 0o644, tarfile.REGTYPE)}
        latent, flipped, ours, source, caption = (archive.extractfile(m).read() for m in members[5:])  # type: ignore[union-attr]
    wanted = sample(long, 1)
    assert (np.load(io.BytesIO(latent), allow_pickle=False) == wanted.latents).all()
    assert (np.load(io.BytesIO(flipped), allow_pickle=False) == wanted.flipped).all()
    assert json.loads(ours) == {"crop": [0, 1, 2, 3]}
    assert (source, caption) == (b'{"of": "the source"}', b"a caption")


def test_texts_keep_apart_from_tvaes_members(tmp_path: Path) -> None:
    texts = {name: name.encode() for name in ("json", "source.json", "left.txt", "flipped.npy", "cls")}
    with tarfile.open(written(tmp_path / "0.tar", sample("k", texts=texts))) as archive:
        found = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        assert len(found) == len(archive.getmembers()) == 8
    assert found["k.source.json"] == b"json"
    assert found["k.source.source.json"] == b"source.json"
    assert found["k.source.flipped.npy"] == b"flipped.npy"
    assert (found["k.left.txt"], found["k.cls"]) == (b"left.txt", b"cls")


def test_the_bytes_are_always_the_same(tmp_path: Path) -> None:
    content = written(tmp_path / "0.tar", sample()).read_bytes()
    assert len(content) % tarfile.RECORDSIZE == 0
    assert hashlib.sha256(content).hexdigest() == "9026c75d58caaece5cd81d8386a26bad7216e33c3c0e32f25d1d4815779d46a7"


@pytest.mark.parametrize(
    ("place", "start", "key"),
    [
        ("a.jpg", None, "a"),
        ("sub.1/a.b.jpg", None, "sub.1/a_b"),
        ("clip.mp4", 12, "clip_000012"),
        ("__a__/b.png", None, "_a__/b"),
        ("x/__a__/b.png", None, "x/__a__/b"),
    ],
)
def test_keys(place: str, start: int | None, key: str) -> None:
    assert key_of(PurePosixPath(place), start) == key


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
@pytest.mark.parametrize("place", ["a.jpg", "sub.1/a.b.jpg", "__a__/b.png", "x/__a__/b.png", "__a__.png", "ü ü/ä.png"])
def test_webdataset_reads_them(tmp_path: Path, place: str) -> None:
    webdataset = pytest.importorskip("webdataset")
    key = key_of(PurePosixPath(place))
    path = written(tmp_path / "00000.tar", sample(key), sample("second", 1))
    first, second = webdataset.WebDataset(str(path), shardshuffle=False).decode()
    wanted = sample(key)
    assert first["__key__"] == key
    assert (first["latent.npy"] == wanted.latents).all()
    assert (first["flipped.npy"] == wanted.flipped).all()
    assert (first["json"], first["source.json"], first["txt"]) == (
        {"crop": [0, 1, 2, 3]},
        {"of": "the source"},
        "a caption",
    )
    assert second["__key__"] == "second"
