"""Levels 2 and 3 against the float64 oracle, and what they do where they cannot run.

The CPU here has no TorchScript fuser, so level 2 runs unfused: the formulas are checked, not the fuser.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kernel_inputs import TYPES, channels_last, normal

from tvae.kernels import Kernels, Unsupported, native, script, why_missing
from tvae.kernels import compile as compiled
from tvae.kernels.cases import small_cases
from tvae.kernels.check import deviation
from tvae.kernels.operations.norm_act import norm_act

CPU = torch.device("cpu")
needs_compiler = pytest.mark.skipif(compiled.missing() is not None, reason=str(compiled.missing()))


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchScript on a CPU as if its fuser made code for it."""
    monkeypatch.setattr(script, "_makes_code_for", lambda device_type: True)
    monkeypatch.setattr(script, "_failed", {})
    monkeypatch.setattr(script, "_met", set())


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """Level 3 as at the start of a process, before and after."""

    def forget() -> None:
        compiled._failed.clear()
        compiled._compiled.clear()
        compiled._lacking.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("operation", native.IMPLEMENTATIONS)
def test_the_definitions_are_what_the_oracle_says(operation: str, dtype: torch.dtype) -> None:
    for case in small_cases(operation, dtype, CPU):
        assert deviation(case, native.IMPLEMENTATIONS[operation]).passed, case.label


@pytest.mark.usefixtures("unfused")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("operation", script.IMPLEMENTATIONS)
def test_script_gives_the_oracles_numbers_or_refuses(operation: str, dtype: torch.dtype) -> None:
    computed = []
    for case in small_cases(operation, dtype, CPU):
        before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case.arguments]
        try:
            assert deviation(case, script.IMPLEMENTATIONS[operation]).passed, case.label
            computed.append(case.label)
        except Unsupported:
            for arg, was in zip(case.arguments, before, strict=True):
                assert not isinstance(arg, torch.Tensor) or case.out is not None or torch.equal(arg, was)
    assert {"picture", "clip"} <= set(computed)
    assert not script._failed


@pytest.mark.usefixtures("unfused")
def test_script_keeps_the_layout_and_takes_parts_of_a_picture() -> None:
    x = channels_last(normal((1, 8, 9, 6), 0).bfloat16())[:, :, 2:7]
    affine = normal((2, 1, 8), 1).float()
    got = script.norm_act(x, affine, "silu")
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, norm_act(x, affine, "silu"), rtol=2**-6, atol=1e-3)


@pytest.mark.usefixtures("unfused")
def test_script_keeps_nan_and_refuses_what_it_does_not_know() -> None:
    x = torch.ones(1, 2, 3)
    x[0, 1, 1] = torch.nan
    assert script.norm_act(x, torch.ones(2, 1, 2), "silu").isnan().sum() == 1
    for form in ("normalize", "rms"):
        got = script.rms_norm_act(channels_last(x), None, None, 1e-6, form, "silu")
        assert got.isnan().any(1).tolist() == [[False, True, False]]
    with pytest.raises(Unsupported, match="gelu"):
        script.norm_act(x, torch.ones(2, 1, 2), "gelu")
    with pytest.raises(Unsupported, match="layer"):
        script.rms_norm_act(channels_last(x), None, None, 1e-6, "layer", None)


@pytest.mark.usefixtures("unfused")
def test_a_fuser_that_fails_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*args: Any) -> Any:
        calls.append(args)
        raise RuntimeError("The following operation failed:\n  NVRTC says no")

    monkeypatch.setattr(script, "_scripted", lambda formula: fail)
    for _ in range(2):
        with pytest.raises(Unsupported, match="NVRTC says no"):
            script.norm_act(torch.ones(1, 2, 3), torch.ones(2, 1, 2), None)
    assert len(calls) == 1


@pytest.mark.usefixtures("unfused")
def test_memory_that_is_short_once_is_no_reason_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    scripted = script._scripted
    monkeypatch.setattr(script, "_scripted", lambda formula: fail)
    with pytest.raises(Unsupported):
        script.norm_act(torch.ones(1, 2, 3), torch.ones(2, 1, 2), None)
    monkeypatch.setattr(script, "_scripted", scripted)
    assert torch.equal(script.norm_act(torch.ones(1, 2, 3), torch.ones(2, 1, 2), None), torch.full((1, 2, 3), 2.0))


def test_script_says_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.missing() or script._makes_code_for("cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 14, 0))
        assert script.missing() == "TorchScript does not support Python 3.14"
    monkeypatch.delattr(torch.jit, "script")
    assert script.missing() == "this PyTorch has no TorchScript"


def test_a_cpu_gets_the_definition_instead_of_script() -> None:
    with pytest.raises(Unsupported, match="NVIDIA"):
        script.norm_act(torch.ones(1, 2, 3), torch.ones(2, 1, 2), None)
    x, affine = normal((1, 2, 5), 0).float(), normal((2, 1, 2), 1).float()
    assert torch.equal(Kernels({"default": "script"}).norm_act(x, affine, "silu"), norm_act(x, affine, "silu"))


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operation", compiled.IMPLEMENTATIONS)
def test_compile_gives_the_oracles_numbers(operation: str, dtype: torch.dtype) -> None:
    """Under warnings as errors: what the compiler warns of is its own affair."""
    for case in small_cases(operation, dtype, CPU):
        assert deviation(case, compiled.IMPLEMENTATIONS[operation]).passed, case.label
    assert not compiled._failed


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_compiled")
def test_one_compilation_serves_all_sizes() -> None:
    from torch._dynamo.utils import counters  # seconds, which other tests need not wait

    affine, before = normal((2, 1, 8), 1).float(), counters["stats"]["unique_graphs"]
    for height in (4, 7, 30):
        x = channels_last(normal((1, 8, height, 6), 0).float())
        torch.testing.assert_close(compiled.norm_act(x, affine, "silu"), norm_act(x, affine, "silu"))
    assert counters["stats"]["unique_graphs"] == before + 1


@needs_compiler
@pytest.mark.usefixtures("nothing_compiled")
def test_a_compiler_that_fails_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*args: Any) -> Any:
        calls.append(args)
        warnings.warn("an old part of PyTorch", DeprecationWarning, stacklevel=1)
        raise RuntimeError("backend='inductor' raised:\nno header\nlong story")

    monkeypatch.setattr(compiled, "_alone", lambda definition, number: fail)
    x, affine = normal((1, 2, 5), 0).float(), normal((2, 1, 2), 1).float()
    kernels = Kernels({"default": "compile"})
    for _ in range(2):
        assert torch.equal(kernels.norm_act(x, affine, None), norm_act(x, affine, None))
    assert len(calls) == 1
    with pytest.raises(Unsupported, match=r"raised: no header$"):
        compiled.norm_act(x, affine, None)


@needs_compiler
@pytest.mark.usefixtures("nothing_compiled")
def test_memory_that_runs_out_is_not_the_compilers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(compiled, "_alone", lambda definition, number: fail)
    with pytest.raises(torch.OutOfMemoryError):
        compiled.norm_act(torch.ones(1, 2, 3), torch.ones(2, 1, 2), None)


@pytest.mark.usefixtures("nothing_compiled")
def test_compile_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compiled.missing() == "torch.compile needs a C++ compiler, and there is no no-such-compiler"
    with pytest.raises(Unsupported, match="no-such-compiler"):
        compiled.norm_act(torch.ones(1, 2, 3), torch.ones(2, 1, 2), None)
    with pytest.raises(Unsupported, match="devices of type meta"):
        compiled.norm_act(torch.ones(1, 2, 3, device="meta"), torch.ones(2, 1, 2), None)


def test_what_a_level_lacks_is_said_by_the_registry() -> None:
    assert why_missing("script") == script.missing()
    assert why_missing("compile") == compiled.missing()
