"""MosaicML's shards: what its own reader gives, and what a second reader here does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mds_files import by_streaming, read_mds

from tvae.pipeline.caches.shards import Sample
from tvae.pipeline.caches.shards.mds import MDS


def samples(flip: bool) -> list[Sample]:
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(4, 8, 6), (16, 3, 300, 2), (1, 1, 70000)]
    made = []
    for n, shape in enumerate(shapes):
        values = rng.standard_normal((2, *shape)).astype(np.float16 if n == 1 else np.float32)
        texts = [{"txt": "ä caption".encode(), "cls": b"3"}, {"caption": b"another"}, {}][n]
        made.append(Sample(f"k/{n}", values[0], {"crop": [n, 0]}, values[1] if flip else None, texts))
    return made


def written(folder: Path, made: list[Sample], flip: bool) -> None:
    settings: dict[str, Any] = {"flip": flip, "limit": 1 << 26}
    listed = []
    for number, group in enumerate((made[:2], made[2:])):
        parts = [MDS.sample(one) for one in group]
        content = MDS.head([len(part) for part in parts], settings) + b"".join(parts)
        content += MDS.tail(len(content))
        assert len(content) == MDS.size(len(parts), sum(map(len, parts)), settings)
        (folder / MDS.file(number)).write_bytes(content)
        listed.append((MDS.file(number), len(content), len(parts), settings))
    assert MDS.index is not None
    (folder / "index.json").write_bytes(MDS.index(listed))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # streaming leaves files open
@pytest.mark.parametrize("reader", ["here", "streaming"])
@pytest.mark.parametrize("flip", [False, True])
def test_readers_give_what_was_written(
    tmp_path: Path, flip: bool, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = samples(flip)
    written(tmp_path, made, flip)
    found = read_mds(tmp_path) if reader == "here" else by_streaming(tmp_path, monkeypatch)
    assert [one["key"] for one in found] == ["k/0", "k/1", "k/2"]
    assert [one["caption"] for one in found] == ["ä caption", "another", ""]
    assert [one["texts"] for one in found] == [{"cls": "3", "txt": "ä caption"}, {"caption": "another"}, {}]
    assert [one["facts"] for one in found] == [{"crop": [n, 0]} for n in range(3)]
    for one, wanted in zip(found, made, strict=True):
        assert one["latent"].dtype == wanted.latents.dtype
        assert (one["latent"] == wanted.latents).all()
        assert ("flipped" in one) == flip
        if wanted.flipped is not None:
            assert (one["flipped"] == wanted.flipped).all()


def test_no_column_is_pickled(tmp_path: Path) -> None:
    written(tmp_path, samples(True), True)
    shards = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert {kind for shard in shards for kind in shard["column_encodings"]} == {"str", "json", "ndarray"}


def test_a_text_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="its txt is no UTF-8 text"):
        MDS.sample(Sample("k", np.zeros((1, 1, 1), np.float32), {}, None, {"txt": b"\xff"}))
