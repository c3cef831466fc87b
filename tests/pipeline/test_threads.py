"""Any number of threads may call: over one object they take turns, over several they do not disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor

from tvae.pipeline import TiledVAE

KL, LITTLE = TINY["AutoencoderKL"], TINY["AutoencoderTiny"]
THREADS = 6
SIZES = ((6, 5), (9, 6), (7, 8), (4, 4))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(params=slow_but([6], [6, 40]))
def many(request: pytest.FixtureRequest) -> int:
    """Calls of each thread."""
    return int(request.param)


def flags() -> tuple[Any, ...]:
    """What a call might leave behind for others."""
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.enabled,
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )


def together(tasks: list[Callable[[], None]]) -> list[BaseException]:
    """What went wrong in any of them, each in a thread of its own, all begun at once."""
    wrong: list[BaseException] = []
    gate = threading.Barrier(len(tasks))

    def run(task: Callable[[], None]) -> None:
        gate.wait()
        try:
            task()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=[task]) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def calls(tiled: Any, inputs: list[Tensor], expected: list[Tensor], close: float, numbers: range) -> Callable[[], None]:
    def run() -> None:
        for n in numbers:
            at = n % len(inputs)
            assert relative_l2(result(tiled.decode(inputs[at])), expected[at]) <= close

    return run


def prepared(tiny: Any, dtype: torch.dtype = torch.float32) -> tuple[Any, list[Tensor], list[Tensor]]:
    model = tiny.build().to(dtype)
    inputs = [tiny.input("decode", *size).to(dtype) for size in SIZES]
    with torch.no_grad():
        return model, inputs, [result(model.decode(z)) for z in inputs]


@pytest.mark.long
def test_one_object(many: int) -> None:
    """From its first call on, which captures."""
    model, inputs, expected = prepared(KL)
    tiled, before = TiledVAE(model, "cpu", strip=3), flags()
    assert together([calls(tiled, inputs, expected, 1e-5, range(n, n + many)) for n in range(THREADS)]) == []
    assert flags() == before


@pytest.mark.slow
def test_two_objects_of_one_model_and_two_of_other_types(many: int) -> None:
    model, inputs, expected = prepared(KL)
    low, low_inputs, low_expected = prepared(LITTLE, torch.bfloat16)
    objects = [TiledVAE(model, "cpu", strip=3), TiledVAE(model, "cpu", strip=2)]
    other, before = TiledVAE(low, "cpu", strip=3), flags()
    tasks = [calls(objects[n % 2], inputs, expected, 1e-5, range(n, n + many)) for n in range(4)]
    tasks += [calls(other, low_inputs, low_expected, 0.05, range(n, n + many)) for n in range(2)]
    assert together(tasks) == []
    assert flags() == before


@pytest.mark.slow
def test_while_a_third_is_captured(many: int) -> None:
    model, inputs, expected = prepared(KL)
    tiled = TiledVAE(model, "cpu", strip=3)
    tiled.decode(inputs[0])
    third, before = TINY["AutoencoderKLFlux2"].build(), flags()
    z = TINY["AutoencoderKLFlux2"].input("decode", 4, 5)
    with torch.no_grad():
        wanted = result(third.decode(z))  # type: ignore[operator]

    def capture() -> None:
        assert relative_l2(result(TiledVAE(third, "cpu", strip=2).decode(z)), wanted) <= 1e-5

    assert (
        together([*(calls(tiled, inputs, expected, 1e-5, range(n, n + many)) for n in range(THREADS)), capture]) == []
    )
    assert flags() == before


@pytest.mark.long
def test_a_model_that_changes_meanwhile_ends_no_process() -> None:
    """What such calls give is the caller's matter; afterwards all is right again. No state comes twice: nobody sees
    a change that is taken back while a graph is captured."""
    model, inputs, _ = prepared(KL)
    tiled = TiledVAE(model, "cpu", strip=3)
    stop, states = threading.Event(), count()

    def change() -> None:
        while not stop.wait(0.0005):  # or the calls would hardly have a turn
            eps = 1e-5 + 1e-8 * next(states)
            for part in model.modules():
                if isinstance(part, torch.nn.GroupNorm):
                    part.eps = eps
            with torch.no_grad():
                model.decoder.conv_out.weight.data.mul_(1.0001)

    def call() -> None:
        try:
            for n in range(10):
                tiled.decode(inputs[n % len(inputs)])
        finally:
            stop.set()

    together([change, call])  # a call may fail: while a model is captured, its weights are the exporter's
    with torch.no_grad():
        assert relative_l2(result(tiled.decode(inputs[0])), result(model.decode(inputs[0]))) <= 1e-5


@pytest.mark.long
def test_a_graph_that_was_captured_while_the_model_changed_is_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of no model: neither of the one before nor of the one after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from tvae.pipeline.session import new_graph

    model, inputs, _ = prepared(KL)
    norms = [part for part in model.decoder.modules() if isinstance(part, torch.nn.GroupNorm)]
    real, torn = new_graph.capture, [True]

    def capture(*args: Any) -> Any:
        if torn:  # as another thread would
            torn.clear()
            for norm in norms:
                norm.eps = 0.5
            graph = real(*args)
            norms[0].eps = 1e-3
            return graph
        return real(*args)

    monkeypatch.setattr(new_graph, "capture", capture)
    eps = norms[0].eps
    tiled = TiledVAE(model, "cpu", strip=3)
    tiled.decode(inputs[0])
    assert not torn
    for norm in norms:
        norm.eps = eps
    for vae in (tiled, TiledVAE(model, "cpu", strip=3)):
        with torch.no_grad():
            want = result(model.decode(inputs[0]))
            assert relative_l2(result(vae.decode(inputs[0])), want) <= 1e-5
