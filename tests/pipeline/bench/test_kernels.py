"""Rows of the kernel benchmark: what is missing, refused, wrong or broken is told, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tvae import presets
from tvae.kernels import Unsupported, registry
from tvae.pipeline.bench import kernels
from tvae.pipeline.bench.kernels import Ceiling, KernelRow, bench_kernels
from tvae.pipeline.errors import UsageError

CPU = torch.device("cpu")
NATIVE = registry.implementation("norm_act", "native")


def rows(*levels: str, **options: Any) -> dict[str, KernelRow]:
    options = {"size": 16, "channels": 8, "operations": ["norm_act"], "repeat": 1, "quick": True, **options}
    found = list(bench_kernels(presets.load("cpu"), CPU, torch.float32, levels=levels, **options))
    assert isinstance(found[0], Ceiling)
    return {row.level: row for row in found if isinstance(row, KernelRow)}


@pytest.fixture
def level(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any] | None], KernelRow]:
    """The row of level cuda when it is this function; native keeps its own."""

    def row(function: Callable[..., Any] | None, **options: Any) -> KernelRow:
        found = {"native": NATIVE, "cuda": function}
        monkeypatch.setattr(kernels, "implementation", lambda operation, level: found[level])
        both = rows("native", "cuda", **options)
        assert both["native"].status == "ok"
        return both["cuda"]

    return row


def test_the_definition() -> None:
    row = rows("native")["native"]
    assert (row.status, row.chosen, row.checked) == ("ok", True, 1)
    assert row.error is not None
    assert 0 < row.error < 1e-6
    assert row.seconds is not None
    assert row.rate == pytest.approx(2 * 8 * 16 * 16 * 4 / row.seconds)


@pytest.mark.long
def test_missing(level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "why_missing", lambda *_: None)
    assert (level(None).status, level(None).reason) == ("missing", "there is none")
    monkeypatch.setattr(kernels, "why_missing", lambda *_: "no card")
    assert level(None).reason == "no card"


def test_refused(level: Any) -> None:
    def never(*arguments: Any) -> Any:
        raise Unsupported("only on Sundays")

    assert (level(never).status, level(never).reason) == ("refused", "only on Sundays")


def test_a_small_call_may_be_refused(level: Any) -> None:
    def one_picture(x: torch.Tensor, *rest: Any) -> Any:
        if len(x) > 1:
            raise Unsupported("one picture at a time")
        return NATIVE(x, *rest)

    row = level(one_picture, quick=False)
    assert row.status == "ok"
    assert row.checked == 5
    assert row.refused == ("batch: one picture at a time", "band: one picture at a time")


def test_wrong(level: Any) -> None:
    row = level(lambda x, affine, act: NATIVE(x, affine, act) * 1.0001)
    assert (row.status, row.error) == ("wrong", pytest.approx(1e-4, rel=0.01))
    assert row.seconds is not None
    endless = level(lambda x, affine, act: NATIVE(x, affine, act) / 0)
    assert (endless.status, endless.to_json()["error"]) == ("wrong", None)


def test_broken(level: Any) -> None:
    def breaks(*arguments: Any) -> Any:
        raise RuntimeError("the compiler\nsays no")

    assert (level(breaks).status, level(breaks).reason) == ("failed", "RuntimeError: the compiler")

    def large(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert (level(large).status, level(large).reason) == ("refused", "out of memory")


def test_a_measured_call_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kernels, "measured_case", large)
    with pytest.raises(UsageError, match="smaller --size"):
        rows("native")
