"""Models whose Python code reads weights of one number: each call goes by the numbers of that moment."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import TvaeError, UnsupportedOp, UsageError
from tvae.pipeline.session import new_graph


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Counts captures, in a folder of graphs of their own."""
    count = [0]
    real = new_graph.capture

    def counted(*args: Any) -> Any:
        count[0] += 1
        return real(*args)

    monkeypatch.setattr(new_graph, "capture", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return count


class Model(ModelOfFunction):
    def __init__(self, of: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__(of)
        self.factor = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("ready", torch.tensor([True]))
        self.register_buffer("count", torch.tensor(3))

    def encode(self, x: Tensor) -> Tensor:
        return self.of(self, self.conv(x))

    def decode(self, z: Tensor) -> Tensor:
        return self.conv(z) * self.factor


def flag(model: Model, h: Tensor) -> Tensor:
    return h * 2 if not model.ready else h - 1


def flag_and_any(model: Model, h: Tensor) -> Tensor:
    return h * 2 if model.ready.logical_not().any() else h - 1


def item(model: Model, h: Tensor) -> Tensor:
    return h * model.factor.item() + model.factor.exp()


def converted(model: Model, h: Tensor) -> Tensor:
    return h * float(model.factor) + int(model.count)


def through_others(model: Model, h: Tensor) -> Tensor:
    return h * 2 if model.factor.detach().cpu().double() * model.count > 1.4 else h - 1


def repeated(model: Model, h: Tensor) -> Tensor:
    for _ in range(int(model.count)):
        h = model.conv(h)
    return h


READ = [flag, flag_and_any, item, converted, through_others, repeated]


def agrees(tiled: TiledVAE, model: Model, rows: int = 9) -> None:
    x = torch.randn(1, 3, rows, 6)
    with torch.no_grad():
        want = copy.deepcopy(model).double().encode(x.double())
        got = tiled.encode(x)
        assert got.dtype == torch.float32
        assert float((got - want).norm() / want.norm()) < 1e-5


def in_place(model: Model, name: str, value: float) -> None:
    with torch.no_grad():
        getattr(model, name).fill_(value)


def through_data(model: Model, name: str, value: float) -> None:
    getattr(model, name).data.fill_(value)


def through_numpy(model: Model, name: str, value: float) -> None:
    getattr(model, name).detach().numpy().fill(value)


def loaded(model: Model, name: str, value: float) -> None:
    state = model.state_dict()
    model.load_state_dict(state | {name: torch.full_like(state[name], value)})


def replaced(model: Model, name: str, value: float) -> None:
    old = getattr(model, name)
    new = torch.full_like(old, value)
    setattr(model, name, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)


@pytest.mark.long
@pytest.mark.parametrize("of", READ, ids=lambda of: of.__name__)
def test_the_numbers_are_those_of_the_call(of: Callable[[Model, Tensor], Tensor], captures: list[int]) -> None:
    tiled = TiledVAE(model := Model(of).eval(), "cpu", strip=2)
    for rows in (9, 4, 9):
        agrees(tiled, model, rows)
    plan = tiled.plan((1, 3, 9, 6), "encode")
    assert plan.strips > 1
    for change in (in_place, through_data, through_numpy, loaded, replaced):
        for name, values in (("ready", (False, True)), ("factor", (0.25, 0.75)), ("count", (1, 2))):
            for value in values:
                change(model, name, value)
                agrees(tiled, model)


@pytest.mark.parametrize(
    "change", [in_place, through_data, through_numpy, loaded, replaced], ids=lambda of: of.__name__
)
def test_a_number_that_returns_finds_its_graph(change: Callable[..., None], captures: list[int]) -> None:
    tiled = TiledVAE(model := Model(flag).eval(), "cpu", strip=2)
    agrees(tiled, model)
    change(model, "ready", False)
    agrees(tiled, model)
    before = captures[0]
    for value in (True, False, True):
        change(model, "ready", value)
        agrees(tiled, model)
    assert captures[0] == before


@pytest.mark.long
def test_graphs_on_disk_are_of_one_number(captures: list[int]) -> None:
    agrees(TiledVAE(model := Model(item).eval(), "cpu", strip=2), model)
    first = captures[0]
    agrees(TiledVAE(again := Model(item).eval(), "cpu", strip=2), again)
    assert captures[0] == first + 1  # the refused one, which told that numbers count
    other = Model(item).eval()
    in_place(other, "factor", 0.125)
    agrees(TiledVAE(other, "cpu", strip=2), other)
    assert captures[0] == first + 3


def test_a_plan_may_come_first(captures: list[int]) -> None:
    tiled = TiledVAE(model := Model(flag).eval(), "cpu", strip=2)
    assert tiled.plan((1, 3, 9, 6), "encode").strips > 1
    agrees(tiled, model)


def test_numbers_that_no_code_reads_cost_nothing(captures: list[int]) -> None:
    tiled, z = TiledVAE(model := Model(flag).eval(), "cpu", strip=2), torch.randn(1, 3, 9, 6)
    for value in (0.5, 0.25, 4.0):
        in_place(model, "factor", value)
        with torch.no_grad():
            torch.testing.assert_close(tiled.decode(z), model.decode(z))
    assert captures == [1]


# -- what stays refused ------------------------------------------------------------------------------------------------
def initialised_in_place(model: Model, h: Tensor) -> Tensor:
    if not model.ready:
        with torch.no_grad():
            model.factor.copy_(h.std())
            model.ready.fill_(True)
    return h / model.factor


def initialised_through_data(model: Model, h: Tensor) -> Tensor:
    if not model.ready:
        model.factor.data.copy_(h.std())
        model.ready.data.fill_(True)
    return h / model.factor


def initialised_by_assignment(model: Model, h: Tensor) -> Tensor:
    if not model.ready:
        model.count = h.std()
        model.ready = torch.ones_like(model.ready)
    return h / model.count


def counted(model: Model, h: Tensor) -> Tensor:
    model.count += 1
    return h * model.count.item()


def counted_after(model: Model, h: Tensor) -> Tensor:
    h = h * model.count.item()
    model.count.add_(1)
    return h


def counted_through_data(model: Model, h: Tensor) -> Tensor:
    model.count.data = model.count.data + 1
    return h * int(model.count)


def by_the_input(model: Model, h: Tensor) -> Tensor:
    return h * 2 if h.sum() > model.factor else h


STATE = [initialised_in_place, initialised_through_data, initialised_by_assignment]
STATE += [counted, counted_after, counted_through_data]


@pytest.mark.parametrize("of", [*STATE, by_the_input], ids=lambda of: of.__name__)
def test_what_a_call_changes_is_refused(of: Callable[[Model, Tensor], Tensor], captures: list[int]) -> None:
    tiled = TiledVAE(model := Model(of).eval(), "cpu", strip=2)
    in_place(model, "ready", False)
    before = {name: (t, t.detach().clone()) for name, t in [*model.named_parameters(), *model.named_buffers()]}
    words = []
    for _ in range(2):
        with pytest.raises(TvaeError) as caught:
            tiled.encode(torch.randn(1, 3, 9, 6))
        words.append(str(caught.value))
        assert isinstance(caught.value, UnsupportedOp | UsageError)
    assert words[0] == words[1]
    assert captures[0] <= 3
    now = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(now[name] is t and torch.equal(t, values) for name, (t, values) in before.items())


def test_a_write_through_data_is_told(captures: list[int]) -> None:
    in_place(model := Model(initialised_through_data).eval(), "ready", False)
    with pytest.raises(UnsupportedOp, match="changes a tensor that is kept from call to call"):
        TiledVAE(model, "cpu", strip=2).encode(torch.randn(1, 3, 9, 6))


@pytest.mark.parametrize("of", STATE[:3], ids=lambda of: of.__name__)
def test_what_has_been_initialised_is_taken(of: Callable[[Model, Tensor], Tensor], captures: list[int]) -> None:
    tiled = TiledVAE(model := Model(of).eval(), "cpu", strip=2)
    in_place(model, "ready", False)
    with pytest.raises(TvaeError):
        tiled.encode(torch.randn(1, 3, 9, 6))
    with torch.no_grad():
        model.encode(torch.randn(1, 3, 9, 6))
    agrees(tiled, model)
    in_place(model, "ready", False)
    with pytest.raises(TvaeError):
        tiled.encode(torch.randn(1, 3, 9, 6))
