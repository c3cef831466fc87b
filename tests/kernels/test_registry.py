"""Which level computes: the one that was chosen, or the next one down, said once."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import tvae.kernels
from tvae.kernels import LEVELS, OPERATIONS, Kernels, Unsupported, implementation, native, registry, why_missing
from tvae.kernels.prebuild import rehearsal

ARGUMENTS = (torch.ones(3), torch.ones(3), torch.full((3,), 2.0))


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts a stand-in for a level in place: what it implements, and why it is missing."""

    def level(name: str, missing: str | None = None, **implementations: Callable[..., Any]) -> None:
        module = ModuleType(f"tvae.kernels.{name}")
        module.IMPLEMENTATIONS, module.missing = implementations, lambda: missing  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        why_missing.cache_clear()

    yield level
    why_missing.cache_clear()


def refuse(*_: Any) -> Any:
    raise Unsupported("three is not my number")


def answer(value: str) -> Callable[..., Any]:
    return lambda *_: value


def test_every_operation_has_its_definition_and_its_method() -> None:
    assert set(native.IMPLEMENTATIONS) == set(OPERATIONS)
    assert why_missing("native") is None
    for name, definition in native.IMPLEMENTATIONS.items():
        method = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
        assert method == list(inspect.signature(definition).parameters)


@pytest.mark.parametrize("name", LEVELS)
def test_the_table_says_what_there_is(name: str) -> None:
    module = pytest.importorskip(f"tvae.kernels.{name}", exc_type=ImportError)
    rows = [line.split() for line in str(tvae.kernels.__doc__).splitlines() if line.startswith(OPERATIONS)]
    assert [row[0] for row in rows] == list(OPERATIONS)
    column = 1 + LEVELS.index(name)
    assert {row[0] for row in rows if row[column] == "+"} == set(module.IMPLEMENTATIONS)


def test_the_chosen_level_computes(level: Callable[..., None]) -> None:
    level("cuda", sample=answer("cuda"))
    level("triton", sample=answer("triton"), group_stats=answer("triton"))
    kernels = Kernels({"default": "cuda", "group_stats": "native"})
    assert kernels.sample(*ARGUMENTS) == "cuda"
    assert torch.is_tensor(kernels.group_stats(torch.ones(1, 2, 3)))


def test_what_a_level_lacks_the_next_one_down_does(level: Callable[..., None]) -> None:
    level("cuda")
    level("triton", sample=answer("triton"))
    kernels = Kernels({"default": "cuda"})
    assert kernels.sample(*ARGUMENTS) == "triton"
    assert torch.is_tensor(kernels.group_stats(torch.ones(1, 2, 3)))


@pytest.mark.parametrize("above", ["script", "compile", "triton"])
def test_what_a_level_refuses_the_definition_does_and_the_log_says_so_once(
    level: Callable[..., None], above: str, caplog: pytest.LogCaptureFixture
) -> None:
    level(above, sample=refuse)
    kernels = Kernels({"sample": above})
    with caplog.at_level(logging.INFO, "tvae"):
        assert kernels.sample(*ARGUMENTS).tolist() == [3.0] * 3
        assert kernels.sample(*ARGUMENTS).tolist() == [3.0] * 3
    assert caplog.messages == [f"sample: not at level {above} (three is not my number)"]


def test_the_log_says_nothing_of_a_rehearsal(level: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    level("triton", sample=refuse)
    kernels = Kernels({"sample": "triton"})
    with caplog.at_level(logging.INFO, "tvae"):
        with rehearsal():
            kernels.sample(*ARGUMENTS)
        assert not caplog.messages
        kernels.sample(*ARGUMENTS)
    assert len(caplog.messages) == 1


def test_levels_are_prepared_once_each_and_those_below_them(level: Callable[..., None]) -> None:
    asked: list[tuple[Any, ...]] = []
    level("cuda", sample=answer("cuda"))
    level("triton", sample=answer("triton"))
    sys.modules["tvae.kernels.cuda"].prepare = lambda *args: asked.append(args)  # type: ignore[attr-defined]
    sys.modules["tvae.kernels.triton"].prepare = lambda *args: asked.append(("below", *args))  # type: ignore[attr-defined]
    Kernels({"default": "native", "sample": "cuda", "norm_act": "cuda"}).prepare(torch.bfloat16, 2)
    assert sorted(asked, key=len) == [
        ({"sample", "norm_act"}, torch.bfloat16, 2),
        ("below", {"sample", "norm_act"}, torch.bfloat16, 2),
    ]
    Kernels({"default": "native"}).prepare(torch.bfloat16, 2)
    assert len(asked) == 2


def test_a_level_that_cannot_be_prepared_is_told_when_the_others_are(level: Callable[..., None]) -> None:
    asked: list[tuple[Any, ...]] = []
    level("cuda", sample=answer("cuda"))
    level("triton", sample=answer("triton"))

    def fail(*_: Any) -> None:
        raise RuntimeError("no compiler")

    sys.modules["tvae.kernels.cuda"].prepare = fail  # type: ignore[attr-defined]
    sys.modules["tvae.kernels.triton"].prepare = lambda *args: asked.append(args)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no compiler"):
        Kernels({"default": "cuda"}).prepare(torch.bfloat16, 2)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("levels", "rehearsable"),
    [
        ({"default": "triton"}, True),
        ({"default": "native", "norm_act": "cuda"}, True),
        ({"default": "native"}, False),
        ({"default": "triton", "norm_act": "compile"}, False),
    ],
)
def test_rehearsals_are_for_kernels_that_serve_every_size(levels: dict[str, str], rehearsable: bool) -> None:
    assert Kernels(levels).rehearsable == rehearsable


def test_a_level_that_is_missing_is_passed_over(level: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    level("cuda", missing="no CUDA device", sample=answer("cuda"))
    level("triton", missing="triton is not installed", sample=answer("triton"))
    assert implementation("sample", "cuda") is None
    with caplog.at_level(logging.INFO, "tvae"):
        assert Kernels({"default": "cuda"}).sample(*ARGUMENTS).tolist() == [3.0] * 3
    assert [message.split("(")[1] for message in caplog.messages] == ["no CUDA device)", "triton is not installed)"]


def test_a_level_whose_library_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'triton'", name="triton")

    monkeypatch.setattr(registry, "import_module", absent)
    why_missing.cache_clear()
    assert why_missing("triton") == "triton is not installed"
    assert implementation("sample", "triton") is None
    why_missing.cache_clear()


def test_errors_of_a_level_are_not_hidden(level: Callable[..., None]) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("shapes do not match")

    level("triton", sample=fail)
    with pytest.raises(ValueError, match="shapes do not match"):
        Kernels({"default": "triton"}).sample(*ARGUMENTS)


@pytest.mark.parametrize("levels", [{"simple": "native"}, {"sample": "simd"}, {"default": "simd"}])
def test_unknown_names_are_refused(levels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"unknown (operation|kernel level) '(simple|simd)'"):
        Kernels(levels)
    with pytest.raises(ValueError, match="unknown operation 'simple'"):
        implementation("simple", "native")
    with pytest.raises(ValueError, match="unknown kernel level 'simd'"):
        why_missing("simd")


def test_the_definition_is_the_default() -> None:
    assert Kernels().levels == dict.fromkeys(OPERATIONS, "native")
    assert Kernels({"sample": "triton"}).levels["sample"] == "triton"
