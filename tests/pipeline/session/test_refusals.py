"""A model that cannot be captured is refused at once the second time, unless it, or what failed, may have changed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import TvaeError, UnsupportedOp, UsageError
from tvae.pipeline.session import new_graph
from tvae.pipeline.session.refusals import Refusals


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, ...]]:
    """Shapes of the captures there were."""
    shapes: list[tuple[int, ...]] = []
    real = new_graph.capture

    def counted(module: nn.Module, fn: Any, inputs: Any, *args: Any) -> Any:
        shapes.append(tuple(inputs[0].shape))
        return real(module, fn, inputs, *args)

    monkeypatch.setattr(new_graph, "capture", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return shapes


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        return self.conv(x)

    def decode(self, z: Tensor) -> Tensor:
        return self.encode(z)


class ByValue(Model):
    def __init__(self) -> None:
        super().__init__()
        self.asks = True

    def encode(self, x: Tensor) -> Tensor:
        return self.conv(x) if not self.asks or x.shape[-2] > 8 or x.sum() > 0 else x


class Counts(Model):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def encode(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conv(x) * self.calls


class Reads(Model):
    path = "nowhere"

    def encode(self, x: Tensor) -> Tensor:
        with open(self.path) as file:
            return self.conv(x) * len(file.read())


def refused(tiled: TiledVAE, rows: int = 8, side: str = "encode") -> TvaeError:
    with pytest.raises(TvaeError) as caught:
        getattr(tiled, side)(torch.zeros(1, 3, rows, 8))
    return caught.value


@pytest.mark.parametrize(("kind", "error"), [(ByValue, UnsupportedOp), (Counts, UsageError)])
def test_the_same_call_is_refused_at_once_in_the_same_words(
    kind: type[Model], error: type[TvaeError], captures: list[Any]
) -> None:
    tiled = TiledVAE(kind(), "cpu", strip=2)
    first = refused(tiled)
    tried = len(captures)
    assert tried > 0
    for _ in range(3):
        again = refused(tiled)
        assert (type(again), str(again), vars(again)) == (error, str(first), vars(first))
        assert again is not first
    with pytest.raises(error):
        tiled.plan((1, 3, 8, 8), "encode")
    assert len(captures) == tried


def test_other_sizes_sides_and_batches_are_tried(captures: list[Any]) -> None:
    tiled = TiledVAE(model := ByValue(), "cpu", strip=2)
    refused(tiled, 8)
    refused(tiled, 6)
    refused(tiled, side="decode")
    with pytest.raises(UnsupportedOp):
        tiled.encode(torch.zeros(2, 3, 8, 8))
    assert captures == [(1, 3, 8, 8), (1, 3, 6, 8), (1, 3, 8, 8), (2, 3, 8, 8)]
    x = torch.randn(1, 3, 12, 8)
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.encode(x))
    refused(tiled, 8)
    assert len(captures) == 5


def test_a_changed_model_is_tried(captures: list[Any]) -> None:
    tiled, x = TiledVAE(model := ByValue(), "cpu", strip=2), torch.randn(1, 3, 8, 8)
    refused(tiled)
    model.asks = False
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.encode(x))
    model.asks = True
    refused(tiled)
    model.encode = model.conv.forward  # type: ignore[method-assign]
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.conv(x))


def test_a_file_that_is_not_there_may_come(captures: list[Any], tmp_path: Path) -> None:
    (model := Reads()).path = str(tmp_path / "factor")
    tiled, x = TiledVAE(model, "cpu", strip=2), torch.randn(1, 3, 8, 8)
    assert "factor" in str(refused(tiled))
    (tmp_path / "factor").write_text("123")
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.encode(x))


@pytest.mark.parametrize("as_cause", [False, True], ids=["raised", "as cause"])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes"),
        RecursionError("maximum recursion depth exceeded"),
        ImportError("no module named taming"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:12]}",
)
def test_what_may_pass_is_tried_again(
    error: BaseException, as_cause: bool, captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_args: Any, **_kwargs: Any) -> Any:
        if as_cause:
            raise ValueError("while it was traced") from error
        raise error

    tiled, x = TiledVAE(model := Model(), "cpu", strip=2), torch.randn(1, 3, 8, 8)
    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "export", failing)
        with pytest.raises((UnsupportedOp, KeyboardInterrupt)):
            tiled.encode(x)
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.encode(x))


def test_a_model_that_changes_while_it_is_captured_is_not_remembered(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiled = TiledVAE(model := Model(), "cpu", strip=2)

    def failing(*_args: Any, **_kwargs: Any) -> Any:
        with torch.no_grad():
            model.conv.bias.add_(1)  # type: ignore[union-attr]
        raise ValueError("of a state that there is no more")

    with monkeypatch.context() as patch:
        patch.setattr(torch.export, "export", failing)
        refused(tiled)
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.encode(x))


# -- what is kept ------------------------------------------------------------------------------------------------------
def raised(holds: Any) -> UnsupportedOp:
    try:
        raise UnsupportedOp("aten.sort", "head", "because", whole=False) from ValueError(holds)
    except UnsupportedOp as error:
        return error


def test_nothing_of_the_caller_is_kept() -> None:
    known, held = Refusals(), torch.zeros(3)
    gone = weakref.ref(held)
    known.keep("key", raised(held))
    del held
    gc.collect()
    assert gone() is None
    with pytest.raises(UnsupportedOp, match="because") as caught:
        known.check("key")
    assert (caught.value.op, caught.value.module) == ("aten.sort", "head")
    known.check("another")


def test_the_number_of_refusals_is_bounded() -> None:
    known = Refusals()
    for n in range(1000):
        known.keep(n, raised(None))
        with pytest.raises(UnsupportedOp):
            known.check(0)  # in use
    assert len(known._known) < 1000
    known.check(1)
