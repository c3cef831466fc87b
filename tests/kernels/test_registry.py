"""Which level computes: the one that was chosen, or the next one down, said once."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tvae.kernels import (
    LEVELS,
    OPERATIONS,
    Kernels,
    Unsupported,
    activation,
    convolution,
    frames,
    implementation,
    operations,
    registry,
    statistics,
    why_missing,
)
from tvae.kernels.cases import measured_case, small_cases
from tvae.kernels.definitions import definitions, definitions_alone
from tvae.kernels.operations import operation_of
from tvae.kernels.prebuild import rehearsal
from tvae.kernels.registry import Failed

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


def test_a_file_is_an_operation_of_its_name_and_has_a_method() -> None:
    files = {path.stem for path in Path(operations.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(OPERATIONS) == files == {operation_of(name).name for name in files}
    assert why_missing("native") is None
    for name in OPERATIONS:
        method = getattr(Kernels, name, None)
        assert method is not None, f"kernels/registry.py: Kernels has no method {name}"
        assert inspect.signature(method) == inspect.signature(operation_of(name).definition)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_level_has_an_operation_or_a_reason(operation: str, level: str) -> None:
    module = pytest.importorskip(f"tvae.kernels.{level}", exc_type=ImportError)
    assert (operation in module.IMPLEMENTATIONS) != (level in operation_of(operation).left_out)


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_has_the_parameters_of_the_definitions(level: str) -> None:
    module = pytest.importorskip(f"tvae.kernels.{level}", exc_type=ImportError)
    for name, run in module.IMPLEMENTATIONS.items():
        wanted, found = (inspect.signature(fn).parameters for fn in (operation_of(name).definition, run))
        assert [*found][: len(wanted)] == [*wanted]
        assert all(more.default is not more.empty for more in [*found.values()][len(wanted) :])


def test_methods_pass_on_all_arguments_by_position(level: Callable[..., None]) -> None:
    level("cuda", add_stats=lambda *args: args)
    kernels: Any = Kernels({"default": "cuda"})
    assert kernels.add_stats(1) == (1, None, None, None, True)
    assert kernels.add_stats(1, stats=False, bias=2) == (1, None, 2, None, False)
    assert kernels.add_stats(1, 2, 3, 4, False) == (1, 2, 3, 4, False)
    for wrong in (lambda: kernels.add_stats(), lambda: kernels.add_stats(1, more=2)):
        with pytest.raises(TypeError):
            wrong()


def test_no_oracle_uses_a_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call must give is made by code of its own: also when no definition works."""

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a definition was called")

    ours = {operation_of(name).definition for name in OPERATIONS}
    for helpers in (activation, convolution, frames, statistics):
        ours |= {fn for fn in vars(helpers).values() if inspect.isfunction(fn)}
    for module in [import_module(f"{operations.__name__}.{name}") for name in OPERATIONS]:
        for name, value in [*vars(module).items()]:
            if inspect.isfunction(value) and value in ours:
                monkeypatch.setattr(module, name, fail)
    for name in OPERATIONS:
        assert small_cases(name, torch.float32, torch.device("cpu"))
        assert measured_case(name, torch.float32, torch.device("cpu"), 16, 8)


def test_names_need_no_torch() -> None:
    code = "import sys; from tvae.kernels import LEVELS, OPERATIONS, check_levels; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


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


def test_what_cannot_be_built_is_not_asked_again(level: Callable[..., None]) -> None:
    asked: list[str] = []

    def broken(*_: Any) -> Any:
        asked.append("asked")
        raise Failed("no compiler")

    level("triton", sample=broken)
    kernels = Kernels({"default": "triton"})
    for _ in range(3):
        assert torch.equal(kernels.sample(*ARGUMENTS), torch.full((3,), 3.0))
    assert asked == ["asked"]


def test_definitions_alone_in_one_thread(level: Callable[..., None]) -> None:
    level("triton", sample=answer("triton"))
    level("cuda", sample=answer("cuda"))
    kernels, elsewhere = Kernels({"sample": "cuda"}), list[Any]()
    with definitions():
        assert definitions_alone()
        assert torch.equal(kernels.sample(*ARGUMENTS), torch.full((3,), 3.0))
        other = threading.Thread(target=lambda: elsewhere.append(kernels.sample(*ARGUMENTS)))
        other.start()
        other.join()
    assert elsewhere == [kernels.sample(*ARGUMENTS)] == ["cuda"]
    assert not definitions_alone()
    with pytest.raises(KeyError), definitions():
        raise KeyError
    assert not definitions_alone()


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


@pytest.mark.parametrize(
    ("levels", "reason"),
    [
        ({"simple": "native"}, "the unknown operation 'simple'; did you mean 'sample'.*default, add_stats"),
        ({"sample": "simd"}, "levels.sample must be one of native, .*, found 'simd'$"),
        ({"default": "trition"}, "levels.default must be one of .*, found 'trition'; did you mean 'triton'"),
    ],
)
def test_unknown_names_are_refused(levels: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Kernels(levels)
    with pytest.raises(ValueError, match="unknown operation 'simple'"):
        implementation("simple", "native")
    with pytest.raises(ValueError, match="unknown kernel level 'simd'"):
        why_missing("simd")


def test_the_definition_is_the_default() -> None:
    assert Kernels().levels == dict.fromkeys(OPERATIONS, "native")
    assert Kernels({"sample": "triton"}).levels["sample"] == "triton"
