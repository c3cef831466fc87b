"""Containers of classes derived from Python's own, whose methods take other arguments or give other things."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from slow_but import slow_but
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.identity.module_identity import identity_of
from tvae.pipeline.session.identity.snapshot import Snapshot


class ByName(dict[str, float]):
    """Keys are written in small letters, and ``get`` takes nothing else (transformers has such a registry)."""

    def __setitem__(self, key: str, value: float) -> None:
        super().__setitem__(key.lower(), value)

    def __getitem__(self, key: str) -> float:
        return super().__getitem__(key.lower())

    def get(self, key: str) -> float:  # type: ignore[override]
        return self[key]


class Pairs(dict[str, float]):
    """Gives its entries in forms of its own."""

    def items(self) -> Any:
        return [f"{key}: {value}" for key, value in super().items()]

    def keys(self) -> Any:
        raise RuntimeError("not asked")

    def values(self) -> Any:
        return [None for _ in super().values()]

    def copy(self) -> Any:
        raise RuntimeError("not copied")


class Doubled(dict[str, float]):
    """What is read is no object that is kept; it says that it is empty, and equal to anything."""

    def __getitem__(self, key: str) -> float:
        return 2 * super().__getitem__(key)

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Unequal(dict[str, float]):
    """Equal to nothing, and begins to count anywhere."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not compared")

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("not listed")


class Sorted(OrderedDict[str, float]):
    def items(self) -> Any:
        return sorted(super().items())


class Counted(defaultdict[str, float]):
    def __contains__(self, key: object) -> bool:
        return True


class FromOne(list[float]):
    """Counts from one, like some tables of levels."""

    def __getitem__(self, n: Any) -> Any:
        return super().__getitem__(n - 1)

    def __iter__(self) -> Iterator[float]:
        return iter([None, *(list.__getitem__(self, n) for n in range(len(self)))])  # type: ignore[list-item]

    def __len__(self) -> int:
        return super().__len__()


class Backwards(deque[float]):
    def __iter__(self) -> Iterator[float]:
        return reversed([deque.__getitem__(self, n) for n in range(len(self))])

    def copy(self) -> Any:
        return None


class Named(dict[str, float]):
    """What is asked is an attribute."""

    def __init__(self, **values: float) -> None:
        super().__init__(**values)
        self.extra = 0.0


class Listed(list[float]):
    extra: float


class Few(set[float]):
    def __iter__(self) -> Iterator[float]:
        raise RuntimeError("not listed")

    def __len__(self) -> int:
        return 7


def _listed(*values: float) -> Listed:
    made = Listed(values)
    made.extra = 0.0
    return made


Make, Read, Change = Callable[[], Any], Callable[[Any], float], Callable[[Any], object]
KINDS: dict[str, tuple[Make, Read, Change]] = {
    "by name": (lambda: ByName(gain=1.0), lambda c: c["GAIN"], lambda c: c.__setitem__("gain", 3.0)),
    "pairs": (lambda: Pairs(gain=1.0), lambda c: c["gain"], lambda c: c.__setitem__("gain", 3.0)),
    "pairs, one more": (lambda: Pairs(gain=1.0), lambda c: sum(dict.values(c)), lambda c: c.__setitem__("more", 3.0)),
    "doubled": (lambda: Doubled(gain=1.0), lambda c: c["gain"], lambda c: c.__setitem__("gain", 3.0)),
    "unequal": (lambda: Unequal(gain=1.0), lambda c: c["gain"], lambda c: c.__setitem__("gain", 3.0)),
    "sorted": (lambda: Sorted(b=1.0, a=2.0), lambda c: c[next(iter(c))], lambda c: c.move_to_end("b")),
    "counted": (lambda: Counted(float, gain=1.0), lambda c: c["gain"], lambda c: c.__setitem__("gain", 3.0)),
    "from one": (lambda: FromOne([1.0, 2.0]), lambda c: c[1], lambda c: c.__setitem__(0, 3.0)),
    "backwards": (lambda: Backwards([1.0, 2.0]), lambda c: c[0], lambda c: c.__setitem__(0, 3.0)),
    "an attribute": (lambda: Named(gain=1.0), lambda c: 1.0 + c.extra, lambda c: setattr(c, "extra", 2.0)),
    "of a list": (lambda: _listed(1.0), lambda c: c[0] + c.extra, lambda c: setattr(c, "extra", 2.0)),
    "few": (lambda: Few({1.0}), lambda c: 3.0 if 2.0 in c else 1.0, lambda c: c.add(2.0)),
}
HELD: dict[str, Any] = {}
GLOBAL: Any = None


class Gained(nn.Module):
    def __init__(self, read: Read, held: Any = None) -> None:
        super().__init__()
        self.conv, self.held, self._read = nn.Conv2d(3, 3, 1), held, read

    def _container(self) -> Any:
        return self.held

    def encode(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.conv(x) * self._read(self._container()))

    def decode(self, z: Tensor) -> Tensor:
        return torch.as_tensor(self.conv(z))


class OfGlobal(Gained):
    def _container(self) -> Any:
        return GLOBAL


class InGlobal(Gained):
    def _container(self) -> Any:
        return HELD["it"]


PLACES = {"attribute": Gained, "global": OfGlobal, "inside of a global": InGlobal}
CELLS = [f"{kind} as {place}" for kind in KINDS for place in PLACES]


def of_cell(cell: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Gained, Any, Change]:
    kind, _, place = cell.partition(" as ")
    make, read, change = KINDS[kind]
    held = make()
    monkeypatch.setitem(globals(), "GLOBAL", held)
    monkeypatch.setitem(HELD, "it", held)
    torch.manual_seed(0)
    return PLACES[place](read, held if place == "attribute" else None).eval(), held, change


@pytest.mark.parametrize("cell", CELLS)
def test_a_change_is_seen_and_nothing_else(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, held, change = of_cell(cell, monkeypatch)
    first = identity_of(model)
    assert first.unchanged()
    assert first.portable, first.why
    change(held)
    assert not first.unchanged()
    second = identity_of(model)
    assert second.digest != first.digest
    assert second.unchanged()


@pytest.mark.parametrize("cell", slow_but([f"{kind} as global" for kind in ("by name", "doubled", "few")], CELLS))
def test_it_runs_as_the_model_does(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, held, change = of_cell(cell, monkeypatch)
    x, tiled = torch.randn(1, 3, 16, 16), TiledVAE(model, "cpu", strip=4)
    for _ in range(2):
        with torch.no_grad():
            assert torch.allclose(tiled.encode(x), model.encode(x), atol=1e-6)
        change(held)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_put_back(kind: str) -> None:
    make, read, change = KINDS[kind]
    model = Gained(read, make())
    before = Snapshot(model)
    assert before.changed() == []
    value = read(model.held)
    change(model.held)
    assert read(model.held) != value
    assert bool(before.changed()) == (kind != "sorted"), "an order alone is put back, and is no news: caches keep one"
    before.restore()
    assert before.changed() == []
    assert read(model.held) == value
