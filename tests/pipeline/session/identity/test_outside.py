"""A model's code may keep things in globals, classes and caches of functions: a capture leaves nothing there."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError

KEPT: dict[Any, Tensor] = {}
LAST: Tensor | None = None
COUNT = [1]
CALLS = 1
SIZES = ((16, 12), (21, 20), (16, 12), (9, 14))


def ramp(h: int, w: int) -> Tensor:
    return torch.arange(h).float()[:, None] + torch.arange(w).float()


cached_ramp = functools.lru_cache(maxsize=None)(ramp)


@functools.lru_cache(maxsize=8)
def whole_ramp(h: int, w: int) -> Tensor:
    return ramp(int(h * 1.0), int(w * 1.0))


class Model(nn.Module):
    kept: ClassVar[dict[Any, Tensor]] = {}

    def __init__(self, of: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.of = nn.Conv2d(3, 4, 3, padding=1), of

    def encode(self, x: Tensor) -> Tensor:
        return self.of(self, self.conv(x))

    decode = encode

    def raised(self, h: Tensor) -> Tensor:
        return h + whole_ramp(h.shape[2], h.shape[3])

    @functools.cache  # noqa: B019
    def ramp_of(self, h: int, w: int) -> Tensor:
        return ramp(h, w)


def in_a_global(model: Model, h: Tensor) -> Tensor:
    key = f"{int(h.shape[2])}x{int(h.shape[3])}"
    if key not in KEPT:
        KEPT[key] = ramp(*h.shape[2:])
    return h + KEPT[key]


def in_a_class(model: Model, h: Tensor) -> Tensor:
    key = int(h.shape[2]), int(h.shape[3])
    if key not in model.kept:
        model.kept[key] = ramp(*key)
    return h + model.kept[key]


def under_a_name(model: Model, h: Tensor) -> Tensor:
    global LAST
    if LAST is None or LAST.shape != h.shape[2:]:
        LAST = ramp(*h.shape[2:])
    return h + LAST


def of_a_function(model: Model, h: Tensor) -> Tensor:
    return h + cached_ramp(int(h.shape[2]), int(h.shape[3]))


def of_whole_numbers(model: Model, h: Tensor) -> Tensor:
    return model.raised(h)


def of_a_method(model: Model, h: Tensor) -> Tensor:
    return h + model.ramp_of(int(h.shape[2]), int(h.shape[3]))


def placeholders() -> list[Any]:
    functions = [f(*size) for f in (cached_ramp, whole_ramp) for size in SIZES]
    return [kept for kept in (*KEPT.values(), *Model.kept.values(), LAST, *functions) if isinstance(kept, FakeTensor)]


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize(
    "of",
    [in_a_global, in_a_class, under_a_name, of_a_function, of_whole_numbers, of_a_method],
    ids=lambda of: of.__name__,
)
def test_caches_outside_of_the_model(of: Callable[..., Tensor]) -> None:
    model = Model(of).eval()
    wide = copy.deepcopy(model).double()
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=True)
    for size in SIZES:
        x = torch.randn(1, 3, *size)
        found = tiled.encode(x)
        assert not placeholders()
        own = model.encode(x)
        assert type(own) is Tensor
        want = wide.encode(x.double())
        assert float((found - want).norm() / want.norm()) < 1e-5
        assert float((own - want).norm() / want.norm()) < 1e-5


@torch.no_grad()
def test_a_capture_that_fails_leaves_nothing() -> None:
    def fails(model: Model, h: Tensor) -> Tensor:
        h = in_a_global(model, of_a_function(model, h))
        return h if float(h.sum()) > 0 else -h

    model, x = Model(fails).eval(), torch.randn(1, 3, 10, 11)
    with pytest.raises(Exception, match="cannot be captured"):
        TiledVAE(model, "cpu").encode(x)
    assert not placeholders()
    assert type(model.encode(x)) is Tensor


def counted(model: Model, h: Tensor) -> Tensor:
    COUNT[0] += 1
    return h * COUNT[0]


def counted_by_name(model: Model, h: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return h * CALLS


@torch.no_grad()
@pytest.mark.parametrize("of", [counted, counted_by_name], ids=lambda of: of.__name__)
def test_results_that_depend_on_the_calls_before_are_refused(of: Callable[..., Tensor]) -> None:
    model, before = Model(of).eval(), (COUNT[0], CALLS)
    for _ in range(2):
        with pytest.raises(UsageError, match="keeps state between calls"):
            TiledVAE(model, "cpu").encode(torch.randn(1, 3, 8, 8))
    assert (COUNT[0], CALLS) == before


@pytest.mark.long
@torch.no_grad()
def test_two_models_of_one_cache_in_threads() -> None:
    """Their first calls are at the same time."""
    KEPT.clear()
    wrong: list[Any] = []
    models = [Model(in_a_global).eval() for _ in range(3)]

    def work(model: Model) -> None:
        try:
            tiled = TiledVAE(model, "cpu", strip=3, allow_whole=True)
            for size in SIZES:
                x = torch.randn(1, 3, *size)
                with torch.no_grad():
                    found = tiled.encode(x)
                    if not torch.allclose(found, model.conv(x) + ramp(*size), atol=1e-4):
                        wrong.append(size)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not placeholders()
