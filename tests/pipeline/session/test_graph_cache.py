"""Graphs on disk: found again, never trusted when damaged, safe to delete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_vaes import TINY, relative_l2

from tvae.pipeline import TiledVAE
from tvae.pipeline.session import captures as capturing
from tvae.pipeline.session import graph_cache as graph_store
from tvae.pipeline.session import new_graph
from tvae.pipeline.session.identity.sources import stored_key

SMALL = TINY["AutoencoderTiny"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(graph_store, "_folder", lambda: tmp_path / "graphs")
    return tmp_path / "graphs"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts captures."""
    count = [0]
    real = new_graph.capture

    def counted(*args: object) -> object:
        count[0] += 1
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(new_graph, "capture", counted)
    return count


def test_a_second_object_finds_the_graph(folder: Path, captures: list[int]) -> None:
    z = SMALL.input("decode", 6, 5)
    first = TiledVAE(SMALL.build(), strip=4).decode(z).sample
    assert captures == [1]
    again = TiledVAE(SMALL.build(), strip=4).decode(z).sample
    assert captures == [1]
    assert torch.equal(first, again)
    assert len(list(folder.glob("*.json"))) == 1
    assert not list(folder.glob("*.tmp"))


def test_levels_are_prepared_beside_a_capture_or_a_search_of_the_disk(
    folder: Path, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    @contextmanager
    def prepared(*_: object) -> Iterator[None]:
        begun.append(captures[0])
        yield
        begun.append(captures[0])

    monkeypatch.setattr(capturing, "prepared", prepared)
    vae = TiledVAE(SMALL.build(), strip=4)
    vae.decode(SMALL.input("decode", 6, 5))
    assert begun == [0, 1]
    vae.decode(SMALL.input("decode", 9, 8))
    assert begun == [0, 1]
    TiledVAE(SMALL.build(), strip=4).decode(SMALL.input("decode", 6, 5))
    assert begun == [0, 1, 1, 1]


@pytest.mark.long
def test_what_a_capture_depends_on_is_in_the_key(folder: Path, captures: list[int]) -> None:
    z = SMALL.input("decode", 6, 5)
    TiledVAE(SMALL.build()).decode(z)
    TiledVAE(SMALL.build()).decode(torch.cat([z, z]))  # batch
    TiledVAE(SMALL.build().double()).decode(z.double())  # type
    other = SMALL.build()
    other.register_buffer("extra", torch.zeros(1))  # structure
    TiledVAE(other).decode(z)
    assert captures == [4]


@pytest.mark.long
def test_a_damaged_file_is_captured_anew(folder: Path, captures: list[int]) -> None:
    model, z = SMALL.build(), SMALL.input("decode", 6, 5)
    first = TiledVAE(model).decode(z).sample
    (file,) = folder.glob("*.json")
    whole = file.read_bytes()
    for damage in (b"", b"{", b'{"graph": "{}", "spec": {}}', b"\xff\xfe", whole[: len(whole) // 2]):
        file.write_bytes(damage)
        assert graph_store.GraphStore(file.name.partition("-")[0]).load() == []
    assert relative_l2(TiledVAE(model).decode(z).sample, first) == 0
    assert captures == [2]
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(graph_store, "_folder", lambda: tmp_path / "file" / "graphs")
    assert TiledVAE(SMALL.build()).decode(SMALL.input("decode", 6, 5)).sample.shape == (1, 3, 48, 40)


@pytest.mark.parametrize("left_out", ["own_digest", "torch", "diffusers", "python", "numpy"])
def test_our_sources_and_the_libraries_are_in_the_key(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph_store.graph_key("model", {"side": "decode"})
    assert before == graph_store.graph_key("model", {"side": "decode"})
    if left_out == "own_digest":
        monkeypatch.setattr(graph_store, "own_digest", lambda: "another")
    else:
        versions = {**graph_store.versions(), left_out: "0.0"}
        monkeypatch.setattr(graph_store, "versions", lambda: versions)
    assert graph_store.graph_key("model", {"side": "decode"}) != before
    assert graph_store.graph_key("model", {"side": "encode"}) != graph_store.graph_key("model", {"side": "decode"})
    assert graph_store.graph_key("other", {"side": "decode"}) != graph_store.graph_key("model", {"side": "decode"})


def test_a_model_on_disk_is_known_by_its_class_its_configuration_and_its_weights() -> None:
    module, facts = "diffusers.models.autoencoders.vae", {"class": "A", "config": "c", "weights": {"w": [1]}}
    before = stored_key(module, facts)
    assert before is not None
    assert before == stored_key(module, dict(facts))
    for name, other in (("class", "B"), ("config", "d"), ("weights", {"w": [2]})):
        assert stored_key(module, {**facts, name: other}) != before
    assert stored_key("diffusers.models.autoencoders.autoencoder_kl", facts) != before


@pytest.mark.long
def test_a_graph_of_other_weights_is_captured_anew_with_one_warning(
    folder: Path, captures: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    model, z = SMALL.build(), SMALL.input("decode", 6, 5)
    TiledVAE(model, strip=4).decode(z)
    (path,) = folder.glob("*.json")
    text = path.read_text(encoding="utf-8").replace("[64, ", "[63, ").replace("[16, ", "[15, ")
    path.rename(path.with_stem(graph_store._name(path.stem.partition("-")[0], text))).write_text(text, "utf-8")
    for _ in range(2):
        with torch.no_grad():
            assert relative_l2(TiledVAE(model, strip=4).decode(z).sample, model.decode(z).sample) < 1e-5
    assert captures == [2]
    assert sum("captured again" in record.message for record in caplog.records) == 1


def test_a_graph_that_cannot_be_kept_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graph_store.os, "fsync", full)
    TiledVAE(SMALL.build()).decode(SMALL.input("decode", 6, 5))
    assert not list(folder.iterdir())


class Tabled(torch.nn.Module):
    """With a large constant that is no weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv, self.table = torch.nn.Conv2d(3, 3, 1), torch.linspace(1, 2, size)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.conv(x) * self.table[-1:])

    decode = encode


@torch.no_grad()
@pytest.mark.parametrize(("size", "kept"), [(1000, 1), (300_000, 0)])
def test_large_constants_are_not_written_as_text(size: int, kept: int, folder: Path) -> None:
    model, x = Tabled(size).eval(), torch.randn(1, 3, 9, 8)
    for _ in range(2):
        assert relative_l2(TiledVAE(model, "cpu", strip=4).encode(x), model.encode(x)) < 1e-5
        assert len([*folder.glob("*")]) == kept
