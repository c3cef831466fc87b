"""What disk says of a model's outputs is looked through before anything is made of it."""

from __future__ import annotations

import copy
import json
import sys
import types
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import returned_values
import torch
from returned_values import Derived, alike, from_disk, named
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session import graph_cache as graph_store
from tvae.pipeline.session.outputs.classes import ClassName, class_of, digest_of
from tvae.pipeline.session.outputs.spec import Spec, checked, importable, resolvable
from tvae.pipeline.session.outputs.taken_apart import flatten, posterior_of, rebuild


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    found: Any = {"tensor": 0}
    for _ in range(levels):
        found = {"sequence": "list", "items": [found]}
    return found


@pytest.mark.parametrize(
    "doc",
    [
        *(None, [], "tensor", 7, {}, {"tensor": 1}, {"tensor": -1}, {"tensor": True}, {"tensor": 0.0}, {"tensor": "0"}),
        *({"tensor": 0, "more": 1}, {"tensor": 0, "constant": 1}, {"constant": [1]}, {"constant": {"tensor": 0}}),
        *({"constant": "x" * 1001}, {"size": [0, 2]}, {"size": [1, 0]}, {"size": [0]}, {"size": 0}),
        *({"device": "os:system"}, {"device": "cuda:x"}, {"device": 0}, {"dtype": "load"}, {"dtype": 3}),
        *({"sequence": "set", "items": []}, {"sequence": "list"}, {"sequence": "list", "items": {}}),
        *({"sequence": "size", "items": [{"tensor": 0}]}, {"sequence": "list", "items": [0]}, {"same": 0}),
        *({"mapping": "dict", "items": [{"tensor": 0}]}, {"mapping": "dict", "items": [[[], {"tensor": 0}]]}),
        *({"class": "os:system"}, {"class": "os"}, {"class": 1}, named("a:b", state=[]), named("a:b", items={})),
        *(named("a:b", digest=1), named("ab"), named("a:b", state={"x": 1}), named("a:b", call=1)),
        {"class": "a:b", "digest": "0", "from": {"constant": 1}, "arguments": {}},
        {"class": "a:b", "digest": "0", "from": {"tensor": 0}, "arguments": {"x": []}},
        {"class": "a:b", "digest": "0", "from": {"tensor": 0}, "arguments": {}, "state": {}},
        *(named("a:b", posterior=1), named("a:b", posterior={}), named("a:b", posterior={"mean": {"tensor": 0}})),
        named("a:b", posterior={"moments": {"tensor": 0}, "point": 1}),
        named("a:b", posterior={"moments": {"tensor": 1}, "point": False}),
        {"sequence": "list", "items": [{"tensor": 0}] * 5000},
        *(deep(25), deep(900)),
        {"sequence": "list", "items": [], "id": "0"},
        {"tensor": 0, "id": 0},
    ],
)
def test_any_other_description_counts_as_absent(doc: Any) -> None:
    assert checked({"sequence": "list", "items": [{"tensor": 0}, {"size": [0, 1]}]}, [2])
    with pytest.raises((ValueError, KeyError)):
        checked(doc, [2])


def test_moments_have_channels() -> None:
    doc = named("a:b", posterior={"moments": {"tensor": 0}, "point": True})
    assert checked(doc, [2]) == doc
    with pytest.raises(ValueError, match="description"):
        checked(doc, [1])


@pytest.mark.parametrize(
    "path",
    [
        *("os:system", "builtins:exec", "builtins:type", "subprocess:Popen", "tempfile:_TemporaryFileCloser"),
        *("argparse:Namespace", "string:Template", "enum:Enum", "torch.fx.node:Node"),
        *("torch:load", "torch:Generator", "torch.nn.modules.activation:SiLU", "torch.hub:load", "types:FunctionType"),
        *("this:that", "json.tool:main", "numpy:ndarray", "test:Out", "diffusers.models:AutoencoderKL"),
        *(
            "tvae.pipeline.tiled_vae:TiledVAE",
            "tvae.pipeline.session.outputs.taken_apart:UsageError",
            "tvae.pipeline.session.outputs.taken_apart:torch.load",
        ),
    ],
)
@pytest.mark.parametrize("made", [{"state": {}, "items": []}, {"from": {"tensor": 0}, "arguments": {}}])
def test_nothing_is_imported_or_called_by_name(path: str, made: Spec) -> None:
    before = set(sys.modules)
    found = class_of(path)
    spec = checked({"class": path, "digest": digest_of(found) if found else "0", **made}, [4])
    assert not resolvable(spec)
    with pytest.raises(UsageError, match="not what it was"):
        rebuild(spec, [torch.ones(1, 2, 1, 1)])
    assert set(sys.modules) == before


class Speaking:
    """A distribution with a text; none is made with one from disk."""

    called = 0

    def __init__(self, parameters: Tensor, again: str = "") -> None:
        Speaking.called += 1

    def sample(self) -> Tensor:
        """Some."""
        return torch.ones(1)

    def mode(self) -> Tensor:
        """One."""
        return torch.ones(1)


class Caller:
    """Would be called with what stands on disk."""

    called = 0

    def __init__(self, command: Tensor, again: str = "") -> None:
        Caller.called += 1


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [(Caller, {}), (Caller, {"again": "rm"}), (Speaking, {"again": "rm"}), (Speaking, {"other": 1})],
)
def test_only_a_distribution_is_made_by_its_constructor_and_of_numbers(cls: Any, arguments: Spec) -> None:
    name, digest = str(ClassName.of(cls)), digest_of(cls)
    spec = checked({"class": name, "digest": digest, "from": {"tensor": 0}, "arguments": arguments}, [4])
    assert not resolvable(spec)
    assert resolvable(checked(named(name, digest=digest), [4]))
    with pytest.raises(UsageError):
        rebuild(spec, [torch.ones(1)])
    assert cls.called == 0


def test_a_class_is_where_it_says_and_nobody_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = lambda name: pytest.fail("asked for")  # type: ignore[method-assign]
    lazy.Alias = Derived  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    monkeypatch.setitem(sys.modules, "odd", Derived)  # type: ignore[arg-type]
    for path in ("lazy:Alias", "lazy:Other", "lazy:Alias.total", "odd:total", "lazy:", "lazy:."):
        assert class_of(path) is None
        assert not resolvable(checked(named(path, digest=digest_of(Derived)), [4]))


def test_a_class_that_has_changed_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, spec = flatten(Derived(torch.ones(1)))
    read = from_disk(spec, tensors)
    assert resolvable(read)
    monkeypatch.setattr(Derived, "total", lambda self: self.both * 7)
    assert not resolvable(read)
    assert not resolvable(spec)
    monkeypatch.undo()
    monkeypatch.setattr(Derived, "gain", 3.0)
    assert not resolvable(read)
    monkeypatch.undo()
    assert resolvable(read)


@pytest.mark.parametrize(
    "change",
    [
        {"items": [{"tensor": 0}]},
        {"items": [["a", {"tensor": 0}]]},
        {"class": "Items", "items": [{"tensor": 0}]},
        {"class": "Pair", "state": {"x": {"tensor": 0}}},
        {"class": "Pair", "id": 0},
        {"class": "Slotted", "state": {"x": {"tensor": 0}}},
    ],
)
def test_a_description_that_does_not_suit_its_class_is_absent(change: Spec) -> None:
    cls = getattr(returned_values, change.get("class", "Frozen"))
    spec = named(str(ClassName.of(cls)), digest=digest_of(cls))
    assert resolvable(checked(spec, [4]))
    assert not resolvable(checked(spec | {k: v for k, v in change.items() if k != "class"}, [4]))


def test_a_class_without_an_address_stays_in_memory() -> None:
    class Local(Derived):
        pass

    tensors, spec = flatten(Local(torch.ones(1)))
    assert type(rebuild(spec, tensors)) is Local
    assert not importable(spec)
    assert not resolvable(from_disk(spec, tensors))


def test_a_description_holds_across_copies_and_is_json() -> None:
    tensors, spec = flatten(Derived(torch.ones(1)))
    alike(rebuild(copy.deepcopy(spec), tensors), Derived(torch.ones(1)))
    assert json.loads(json.dumps(spec)) == spec


@lru_cache
def _latents() -> Tensor:
    return torch.randn(1, 4, 3, 3)


def test_a_point_is_told_without_classes() -> None:
    _, spec = flatten({"latents": _latents()})
    found = posterior_of(spec, [_latents()])
    assert found.logvar is None
    assert found.mean is _latents()


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"class": "os:system"},
        {"tensor": 1},
        deep(300),
        named("os:system", state={"x": {"tensor": 0, "y": 1}}),
    ],
)
def test_a_graph_whose_description_is_wrong_counts_as_absent(
    damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_store, "_folder", lambda: tmp_path)
    node = Node("input", "x", outputs=(Meta((1, 4), torch.float32),))
    store, tensors = graph_store.GraphStore("key"), [torch.ones(1, 4)]
    store.save(Graph([node], [0], [0]), flatten(tensors)[1])
    (file,) = tmp_path.glob("*.json")
    assert [spec["sequence"] for _, spec in store.load()] == ["list"]
    doc = json.loads(file.read_text())
    file.write_text(json.dumps(doc | {"spec": damage or "os:system"}))
    assert store.load() == []
