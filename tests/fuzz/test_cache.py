"""Damaged cache files: the graph is captured again, the digest computed again, and the results are right."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutations import damaged_bytes, mutated, text_of
from tiny_vaes import TINY

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.models import checksum
from tvae.pipeline.session import graph_cache

SMALL = TINY["AutoencoderTiny"]
SEEDS = [pytest.param(range(40), id="short"), pytest.param(range(100, 1100), id="long", marks=pytest.mark.slow)]


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, graph_cache.GraphStore]]:
    """One kept graph, and the store that reads it."""
    monkeypatch.setattr(graph_cache, "_folder", lambda: tmp_path / "graphs")
    graph_cache._told.clear()
    TiledVAE(SMALL.build(), strip=4).decode(SMALL.input("decode", 6, 5))
    (file,) = (tmp_path / "graphs").glob("*.json")
    yield file, graph_cache.GraphStore(file.stem.partition("-")[0])
    graph_cache._told.clear()


@pytest.mark.parametrize("seeds", SEEDS)
def test_bytes_of_a_graph(seeds: range, graphs: tuple[Path, graph_cache.GraphStore]) -> None:
    file, store = graphs
    whole = file.read_bytes()
    assert len(store.load()) == 1
    for seed in seeds:
        damaged = damaged_bytes(whole, random.Random(seed))
        file.write_bytes(damaged)
        assert damaged == whole or store.load() == [], seed


@pytest.mark.parametrize("seeds", SEEDS)
def test_a_graph_that_was_written_so(
    seeds: range, graphs: tuple[Path, graph_cache.GraphStore], caplog: pytest.LogCaptureFixture
) -> None:
    """Its name fits its text: whoever wrote it could do so. Reading it ends, and runs no code of its; what is said of
    it can be shown."""
    file, store = graphs
    key = file.stem.partition("-")[0]
    doc = json.loads(file.read_text())
    graph = json.loads(doc["graph"])
    file.unlink()
    for seed in seeds:
        rng = random.Random(seed)
        new = {**doc, "graph": text_of(mutated(graph, rng)).decode()} if rng.random() < 0.8 else mutated(doc, rng)
        text = text_of(new).decode()
        path = file.with_name(f"{graph_cache._name(key, text)}.json")
        path.write_text(text)
        for found, _ in store.load():
            assert isinstance(found, Graph)
            found.bind([(1, 4, 6, 5)])
        path.unlink()
    said = [record.getMessage() for record in caplog.records]
    assert said
    assert all(message.isprintable() for message in said)


@pytest.mark.parametrize("seeds", SEEDS)
def test_digests(seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(checksum, "SETTLED_NS", -1)
    (file := tmp_path / "weights").write_bytes(b"1")
    right = checksum.sha256_of_file(file)
    (entry,) = (tmp_path / "cache").iterdir()
    whole = entry.read_bytes()
    for seed in seeds:
        rng = random.Random(seed)
        entry.write_bytes(damaged_bytes(whole, rng) if seed % 2 else text_of(mutated(json.loads(whole), rng)))
        assert checksum.sha256_of_file(file) == right, seed
