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

from tvae.pipeline.caches import Buckets, CacheRequest, trainer_named
from tvae.pipeline.caches.spec import BucketSettings, Size
from tvae.pipeline.caches.webdataset import Sample, key_of, sample_bytes, shard_size, shard_tail
from tvae.pipeline.errors import UsageError


def sample(key: str = "a/b", seed: int = 0, **fields: Any) -> Sample:
    values = np.random.default_rng(seed).integers(-8, 8, (2, 4, 3, 5)).astype(np.float32) / 4
    texts = fields.pop("texts", {"txt": b"a caption", "json": b'{"of": "the source"}'})
    return Sample(key, values[0], {"crop": [0, 1, 2, 3]}, values[1], texts, **fields)


def written(path: Path, *samples: Sample) -> Path:
    content = b"".join(map(sample_bytes, samples))
    path.write_bytes(content + shard_tail(len(content)))
    assert path.stat().st_size == shard_size(len(content))
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


TRAINER = trainer_named("webdataset")


def frame(size: Size, resolution: Size = (1024, 1024), **fields: object) -> tuple[Size, tuple[int, int, int, int]]:
    settings = BucketSettings(TRAINER.architectures[0], resolution, Buckets(**fields), True)  # type: ignore[arg-type]
    found = TRAINER.frame(size, settings)
    return found.resized, found.crop


def test_every_image_covers_a_bucket_of_its_proportions() -> None:
    for size in [(1024, 1024), (3000, 2000), (640, 480), (100, 900), (5000, 400), (1920, 1080), (64, 64)]:
        resized, (left, top, width, height) = frame(size)
        assert width % 64 == height % 64 == 0
        assert 512 <= min(width, height) <= max(width, height) <= 2048
        assert width * height <= 1024 * 1024
        assert width == resized[0] or height == resized[1]
        assert abs(resized[0] / resized[1] / (size[0] / size[1]) - 1) < 0.01
        assert (left, top) == ((resized[0] - width) // 2, (resized[1] - height) // 2)
        if 0.5 < size[0] / size[1] < 2:
            assert width * height > 0.85 * 1024 * 1024
            assert width * height > 0.9 * resized[0] * resized[1]


@pytest.mark.parametrize(
    ("size", "fields", "wanted"),
    [
        ((400, 300), {"on": False}, ((85, 64), (10, 0, 64, 64))),
        ((64, 64), {"smallest": 32, "largest": 128, "step": 32}, ((64, 64), (0, 0, 64, 64))),
        ((400, 100), {"smallest": 32, "largest": 128, "step": 32}, ((128, 32), (0, 0, 128, 32))),
    ],
)
def test_frames(size: Size, fields: dict[str, int], wanted: object) -> None:
    assert frame(size, (64, 64), **fields) == wanted


def test_an_area_without_a_bucket() -> None:
    with pytest.raises(ValueError, match="an area of 64x64 has no bucket"):
        frame((100, 100), (64, 64), smallest=128, largest=256)


def test_sizes_of_shards() -> None:
    with pytest.raises(UsageError, match="'big' is not an amount"):
        CacheRequest("webdataset", shards="big")
