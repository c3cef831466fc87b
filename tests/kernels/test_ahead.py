"""Kernels built while a model is captured: which calls are made, where, and that nothing of it can fail a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tiny_vaes import TINY

from tvae.kernels import Kernels, ahead, native
from tvae.kernels.ahead import Ahead, small_calls
from tvae.pipeline import TiledVAE, compiled

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SDXL = [
    ("decoder.conv_in.weight", (512, 4, 3, 3)),
    ("decoder.mid_block.attentions.0.to_q.weight", (512, 512)),
    ("decoder.mid_block.resnets.0.norm1.weight", (512,)),
    ("decoder.up_blocks.0.upsamplers.0.conv.weight", (512, 512, 3, 3)),
    ("decoder.conv_norm_out.weight", (128,)),
    ("decoder.conv_out.weight", (3, 128, 3, 3)),
    ("decoder.conv_out.bias", (3,)),
    ("encoder.conv_in.weight", (128, 3, 3, 3)),
    ("encoder.mid_block.resnets.0.norm1.weight", (320,)),
]
"""Names and shapes as they are in such a model, some of them."""


def test_calls_are_of_the_models_channels() -> None:
    calls = small_calls(SDXL[:7], torch.bfloat16, CPU)
    assert {arguments[0].shape[1] for arguments in calls["norm_act"]()} == {128, 512}  # type: ignore[attr-defined]
    assert [arguments[1].shape for arguments in calls["conv_from_few"]()] == [(512, 4, 3, 3)]  # type: ignore[attr-defined]
    assert [arguments[1].shape for arguments in calls["conv_to_few"]()] == [(3, 128, 3, 3)]  # type: ignore[attr-defined]
    assert [arguments[0].shape[3] for arguments in calls["wide_attention"]()] == [512]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_call_is_one_that_the_definitions_take(dtype: torch.dtype) -> None:
    calls = small_calls(SDXL, dtype, CPU)
    assert len(calls) == 9
    for name, given in calls.items():
        for arguments in given():
            native.IMPLEMENTATIONS[name](*arguments)


def test_a_model_without_such_norms_asks_for_nothing() -> None:
    weights = [("decoder.conv_in.weight", (96, 16, 3, 3, 3)), ("decoder.norm_out.gamma", (96, 1, 1, 1))]
    assert small_calls(weights, torch.bfloat16, CPU).keys() <= {"conv_from_few", "conv_to_few", "wide_attention"}
    assert all(not [*given()] for given in small_calls(weights, torch.bfloat16, CPU).values())


class Recorder(Kernels):
    """Kernels that are built by being called: which, and in which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def built(self, operation: str) -> Callable[..., Any] | None:
        if operation == "pad":
            return None

        def run(*_: Any) -> None:
            self.seen.append((operation, threading.current_thread().name))
            if operation == "norm_act":
                raise RuntimeError("no compiler here")

        return run


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls are made on the CPU."""
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(ahead, "small_calls", lambda weights, dtype, _device: small_calls(weights, dtype, CPU))


@pytest.mark.usefixtures("on_a_card")
def test_all_are_built_and_those_that_share_a_kernel_in_one_thread() -> None:
    kernels, building = Recorder(), Ahead()
    building.start(kernels, "decode", SDXL, torch.bfloat16, CUDA)
    building.wait()
    assert {name for name, _ in kernels.seen} == small_calls(SDXL, torch.bfloat16, CPU).keys()
    assert len({thread for name, thread in kernels.seen if name in ("group_stats", "add_stats", "conv_add")}) == 1
    assert not [thread for _, thread in kernels.seen if thread == threading.current_thread().name]
    before = len(kernels.seen)
    building.start(kernels, "decode", SDXL, torch.bfloat16, CUDA)
    building.wait()
    assert len(kernels.seen) == before


@pytest.mark.usefixtures("on_a_card")
def test_the_other_side_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ahead, "small_calls", lambda weights, *_: asked.extend(n for n, _ in weights) or {})
    Ahead().start(Recorder(), "decode", SDXL, torch.bfloat16, CUDA)
    assert asked == [name for name, _ in SDXL[:7]]


@pytest.mark.parametrize(("dtype", "device"), [(torch.bfloat16, CPU), (torch.float32, CUDA)], ids=str)
def test_where_nothing_is_built_nothing_is_called(dtype: torch.dtype, device: torch.device) -> None:
    kernels, building = Recorder(), Ahead()
    building.start(kernels, "decode", SDXL, dtype, device)
    building.wait()
    assert not kernels.seen


def test_it_begins_before_the_capture_and_ends_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Fake(Ahead):
        def start(self, kernels: Kernels, side: str, weights: Any, dtype: torch.dtype, device: torch.device) -> None:
            assert (side, dtype, device.type) == ("decode", torch.float32, "cpu")
            assert "decoder.conv_in.weight" in dict(weights)
            order.append("start")

        def wait(self) -> None:
            order.append("wait")

    capture = compiled.capture
    monkeypatch.setattr(compiled, "Ahead", Fake)
    monkeypatch.setattr(compiled, "capture", lambda *given: order.append("capture") or capture(*given))
    monkeypatch.setattr(compiled.Runner, "run", lambda *_: order.append("run") or [torch.zeros(1)])
    tiny = TINY["AutoencoderKL"]
    model = tiny.build()
    model.register_forward_hook(lambda *_: None)  # so that no graph on disk stands for it
    TiledVAE(model, strip=4).decode(tiny.input("decode", 6, 5))
    assert order == ["start", "capture", "wait", "run"]
