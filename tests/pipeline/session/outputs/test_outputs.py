"""What a model returns is put together again as it was, or refused by name."""

from __future__ import annotations

import math
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import compiled_of
from returned_values import Derived, Frozen, Items, Pair, Slotted, alike, from_disk, holder
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.outputs import flatten, is_known, rebuild, storable


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


@pytest.mark.parametrize("number", [lambda h: h.shape[2] * 3 + 1, lambda h: h.shape[2] / 7])
def test_a_number_that_follows_the_size_is_never_an_old_one(number: Callable[[Tensor], Any]) -> None:
    with pytest.raises(UsageError, match=r"at number, .*size"):
        both(lambda h, _: holder(h=h, number=number(h)))


@pytest.mark.slow
@pytest.mark.parametrize("number", [lambda h: int(h.shape[2]) * 3 + 1, lambda h: f"{h.shape[2]} rows"])
def test_a_number_that_the_model_makes_of_the_size_is_right_at_each(number: Callable[[Tensor], Any]) -> None:
    for ours, theirs in both(lambda h, x: holder(h=h, rows=number(x)), (28, 20), (36, 20)):
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
    whole = [compiled.captures for compiled in compiled_of(tiled) if not compiled._step]  # steps give caches, too
    for graph in (known.graph for captures in whole for some in captures._graphs.values() for known in some):
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
    assert storable(spec)
    read = from_disk(spec, tensors)
    assert is_known(read)
    alike(rebuild(read, tensors), value)
