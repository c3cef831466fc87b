"""What a model returns is put together again as it was, or refused by name; what disk says is looked through first."""

from __future__ import annotations

import copy
import json
import math
import sys
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import compiled_of
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session import graph_cache as graph_store
from tvae.pipeline.session.outputs.classes import ClassName, class_of, digest_of
from tvae.pipeline.session.outputs.spec import Spec, checked, importable, resolvable
from tvae.pipeline.session.outputs.taken_apart import flatten, posterior_of, rebuild

Pair = namedtuple("Pair", ["first", "second"])


def alike(ours: Any, theirs: Any, where: str = "") -> None:
    """Same types everywhere, same plain values, tensors within 1e-5."""
    assert type(ours) is type(theirs), where
    if isinstance(theirs, Tensor):
        assert ours.shape == theirs.shape, where
        assert ours.dtype == theirs.dtype, where
        assert ours.device == theirs.device, where
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()) + 1e-12)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            alike(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            alike(one, other, f"{where}[{at}]")
    elif isinstance(theirs, Slotted):
        alike([ours.mean, ours.name], [theirs.mean, theirs.name], where)
    elif not hasattr(theirs, "__dict__"):
        assert ours == theirs or ours != ours, where
    if hasattr(theirs, "__dict__") and not isinstance(theirs, Tensor):
        alike(vars(ours), vars(theirs), where)


def from_disk(spec: Spec, tensors: list[Tensor]) -> Spec:
    """The description as another process reads it."""
    return checked(json.loads(json.dumps(spec)), [t.ndim for t in tensors])


class Model(nn.Module):
    """Encodes to whatever a function makes of the moments and the input."""

    def __init__(self, give: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Conv2d(3, 8, 4, 4), nn.ConvTranspose2d(4, 3, 4, 4)
        self.give = give

    def encode(self, x: Tensor) -> Any:
        """What is given."""
        return self.give(self.down(x), x)

    def decode(self, z: Tensor) -> Tensor:
        """Pixels."""
        return self.up(z)


def both(give: Callable[[Tensor, Tensor], Any], *sizes: tuple[int, int]) -> list[tuple[Any, Any]]:
    """(ours, theirs) at each size, with one object."""
    model = Model(give)
    tiled = TiledVAE(model, strip=2, allow_whole=True)  # of what needs the height as a number nothing can be cut
    found = []
    for height, width in sizes or ((28, 20),):
        x = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(height))
        with torch.no_grad():
            found.append((tiled.encode(x), model.encode(x.clone())))
    return found


@dataclass
class Derived:
    """A field that the constructor computes."""

    mean: Tensor
    gain: float = 2.0
    both: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.both = self.mean * self.gain

    def total(self) -> Tensor:
        """A method that reads it."""
        return self.both.sum() * self.gain


@dataclass(frozen=True)
class Frozen:
    """A constructor that would change what it is given again."""

    mean: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", self.mean * 3)


@dataclass(slots=True)
class Slotted:
    """State that is in slots."""

    mean: Tensor
    name: str = "slot"


class Items(OrderedDict):
    """A dictionary with attributes."""


def holder(**state: Any) -> types.SimpleNamespace:
    """A plain object."""
    return types.SimpleNamespace(**state)


def several(h: Tensor, x: Tensor) -> Any:
    """Views, the same tensor twice, the input, nothing at all, plain values of every kind, objects in objects."""
    mean, _ = h.chunk(2, 1)
    items = Items(a=mean, b=[h, None, True])
    items.note = "kept"  # type: ignore[attr-defined]
    return {
        "tuple": (mean, mean.transpose(2, 3), Pair(h, None)),
        "input": x,
        "plain": [None, False, 1, 0.5, math.inf, "text", h.dtype, torch.int64, x.device],
        "objects": holder(derived=Derived(mean), frozen=Frozen(mean), slotted=Slotted(mean), items=items),
        3: OrderedDict(size=h.shape, height=h.shape[2]),
    }


def test_everything_that_is_held_comes_back() -> None:
    for ours, theirs in both(several, (28, 20), (36, 24), (12, 44)):
        alike(ours, theirs)
        assert ours["tuple"][0] is ours["objects"].derived.mean
        assert ours["objects"].slotted.name == "slot"
        torch.testing.assert_close(ours["objects"].derived.total(), theirs["objects"].derived.total())


def test_what_is_in_two_places_is_one_thing() -> None:
    def knot(h: Tensor, _: Tensor) -> Any:
        inner = holder(h=h, sizes=[1])
        inner.itself = inner
        return [inner, {"inner": inner}, inner.sizes]

    ((ours, _),) = both(knot)
    assert ours[0] is ours[0].itself is ours[1]["inner"]
    assert ours[0].sizes is ours[2]
    value = knot(torch.ones(2), torch.ones(2))
    again = rebuild(from_disk(flatten(value)[1], [torch.ones(2)]), [torch.zeros(2)])
    assert again[0] is again[0].itself is again[1]["inner"]


def test_a_type_and_a_device_are_those_of_the_run() -> None:
    value = holder(h=torch.ones(2), device=torch.device("cpu"), other=torch.device("cuda:1"), kind=torch.float64)
    made = rebuild(from_disk(*flatten(value)[::-1]), [torch.ones(2, device="meta")])
    assert (made.device, made.other, made.kind) == (torch.device("meta"), torch.device("cuda:1"), torch.float64)


def test_a_type_is_that_of_the_result_where_the_computation_is_wider() -> None:
    model = Model(lambda h, _: holder(h=h, kind=h.dtype, other=torch.float64)).half()
    model.config = {"force_upcast": True}
    ours = TiledVAE(model).encode(torch.zeros(1, 3, 8, 8, dtype=torch.float16))
    assert (ours.h.dtype, ours.kind, ours.other) == (torch.float16, torch.float16, torch.float64)


class Tagged(Tensor):
    """More than a tensor."""


class Counter:
    """Has something to do when it goes."""

    def __del__(self) -> None:
        """Nothing, here."""


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (lambda: lambda: 0, "function at x.part"),
        (lambda: nn.SiLU(), "SiLU at x.part"),
        (lambda: nn.Sequential(), "Sequential"),
        (lambda: torch.Generator(), "Generator"),
        (lambda: sys.stdout, "x.part"),
        (lambda: (n for n in "ab"), "generator"),
        (lambda: {1, 2}, "set"),
        (lambda: Tensor, "it is a class"),
        (lambda: types, "module"),
        (lambda: Counter(), "Counter.*__del__"),
        (lambda: torch.ones(2).as_subclass(Tagged), "Tagged.*more than a tensor"),
        (lambda: torch.eye(2).to_sparse(), "more than a tensor"),
        (lambda: type("Named", (tuple,), {})(), None),
        (lambda: st, "module"),
        (lambda: torch.float32.is_floating_point, "bool"),
    ],
)
def test_what_cannot_be_made_again_is_named(part: Callable[[], Any], named: str | None) -> None:
    found = part()
    if named is None or type(found) is bool:
        alike(rebuild(*flatten([torch.ones(1), found])[::-1]), [torch.ones(1), found])
        return
    with pytest.raises(UsageError, match=named):
        flatten(holder(x=holder(part=found, h=torch.ones(1))))


def test_a_value_too_deep_to_be_read_again_is_refused() -> None:
    value: Any = torch.ones(1)
    for levels in range(1, 27):
        value = [value]
        if levels <= 24:
            alike(rebuild(from_disk(*flatten(value)[::-1]), [torch.ones(1)]), value)
    with pytest.raises(UsageError, match="deep"):
        flatten(value)


def test_one_tensor_in_two_places_is_one_output() -> None:
    one = torch.ones(2)
    assert len(flatten((one, [one, one.clone()]))[0]) == 2


def test_a_refusal_comes_from_the_call() -> None:
    with pytest.raises(UsageError, match=r"function at \[0\]\.again, which tvae cannot rebuild"):
        both(lambda h, _: (holder(h=h, again=lambda: h),))
    with pytest.raises(UsageError, match="returns no tensor"):
        both(lambda h, _: (1, 2))


@pytest.mark.parametrize(
    "number", [lambda h: h.shape[2] * 3 + 1, lambda h: h.shape[2] / 7, lambda h: f"{h.shape[2]} rows"]
)
def test_a_number_that_follows_the_size_is_never_an_old_one(number: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UsageError, match=r"at number, .*size"):
        both(lambda h, _: holder(h=h, number=number(h)))


def test_a_number_that_the_model_makes_of_the_size_is_right_at_each() -> None:
    for ours, theirs in both(lambda h, x: holder(h=h, rows=int(x.shape[2]) * 3 + 1), (28, 20), (36, 20)):
        alike(ours, theirs)


# -- what a model's own return_dict gives ------------------------------------------------------------------------------
class Formed(Model):
    """Its tuple is not the fields of its object."""

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """An object, or a list of two."""
        h = self.down(x)
        return Derived(h) if return_dict else [h, "moments"]


def test_a_tuple_is_the_models_own() -> None:
    model, x = Formed(several), torch.randn(1, 3, 20, 24)
    tiled = TiledVAE(model, strip=2)
    with torch.no_grad():
        for form in (True, False, True):
            alike(tiled.encode(x, return_dict=form), model.encode(x, return_dict=form))
        alike(tiled.encode(x, False), model.encode(x, False))


# -- every family ------------------------------------------------------------------------------------------------------
_QUICK = {("AutoencoderKL", "encode"), ("AutoencoderTiny", "decode")}


@pytest.mark.parametrize(
    ("family", "side"),
    [
        pytest.param(name, side, marks=[] if (name, side) in _QUICK else pytest.mark.slow)
        for name in TINY
        for side in ("encode", "decode")
    ],
)
def test_every_family_gives_its_own_output(family: str, side: str) -> None:
    from tvae.pipeline.models.reference import call_reference, reference_mode

    tiny = TINY[family]
    model, x = tiny.build(), tiny.input(side, 4, 6)
    tiled = TiledVAE(model, strip=2)
    extra = tiny.extra(side)
    with torch.no_grad(), reference_mode(model):
        theirs = call_reference(model, side, x, **extra)  # type: ignore[arg-type]
    ours = getattr(tiled, side)(x, **extra)
    alike(ours, theirs)
    alike(getattr(tiled, side)(x, return_dict=False, **extra), theirs.to_tuple())
    for graph in (known.graph for c in compiled_of(tiled) for g in c._captures._graphs.values() for known in g):
        assert len(graph.outputs) == sum(v is not None for v in vars(theirs).values())  # VQ decode has a loss, too
    if not hasattr(theirs, "latent_dist"):
        return
    own, other = ours.latent_dist, theirs.latent_dist
    assert ours["latent_dist"] is own
    draws = [d.sample(torch.Generator().manual_seed(3)) for d in (own, other)]
    alike(*draws)
    alike(own.mode(), other.mode())
    if hasattr(other, "kl"):
        alike(own.kl(), other.kl())
        alike(own.nll(draws[1]), other.nll(draws[1]))


# -- any value ---------------------------------------------------------------------------------------------------------
_PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5)
_NUMBERS = st.integers(0, 7).map(lambda n: torch.full((n % 3 + 1, 2), float(n)))
_LEAVES = _PLAIN | _NUMBERS | st.sampled_from([torch.float16, torch.int8, torch.device("cuda"), torch.Size([2, 3])])
_NAMES = st.text("abc_", min_size=1, max_size=4)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_PLAIN.filter(lambda k: k == k), inner, max_size=3)
        | st.dictionaries(_NAMES, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(_NAMES, inner, max_size=3).map(lambda d: holder(**d))
        | st.dictionaries(_NAMES, inner, max_size=3).map(Items)
        | st.tuples(inner, inner).map(lambda p: Pair(*p))
        | _NUMBERS.map(Derived)
        | _NUMBERS.map(Slotted)
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_any_value_comes_back_also_from_disk(value: Any) -> None:
    value = [value, torch.ones(1)]
    tensors, spec = flatten(value)
    alike(rebuild(spec, tensors), value)
    assert importable(spec)
    read = from_disk(spec, tensors)
    assert resolvable(read)
    alike(rebuild(read, tensors), value)


# -- what disk says ----------------------------------------------------------------------------------------------------
def named(path: str, **more: Any) -> Spec:
    """An object of a class by its name, right but for that."""
    return {"class": path, "digest": "0", "state": {}, "items": []} | more


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
    cls = globals()[change.get("class", "Frozen")]
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
