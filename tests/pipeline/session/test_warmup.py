"""Rehearsals: the small picture, and what runs beside a capture. That nothing is left to build: tests/gpu."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from slow_but import slow_but
from tiny_vaes import TINY
from torch import Tensor, nn
from torch._prims_common import suggest_memory_format

from tvae.kernels import Kernels
from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import load_libraries as loading
from tvae.pipeline.session.outputs import flatten
from tvae.pipeline.session.warmup import (
    _ask_for_attention,
    _small_plan,
    _Unconvolved,
    channels_innermost,
    prepared,
    small_shapes,
)


@pytest.mark.parametrize(
    ("inputs", "outputs", "small"),
    [
        ([(1, 4, 128, 256)], [(1, 3, 1024, 2048)], [(1, 4, 48, 48)]),
        ([(1, 3, 1024, 1024)], [(1, 8, 128, 128)], [(1, 3, 384, 384)]),
        ([(1, 4, 125, 67)], [(1, 3, 1000, 536)], [(1, 4, 61, 51)]),  # what is left by 16 stays
        ([(1, 4, 63, 20)], [(1, 3, 504, 160)], [(1, 4, 63, 20)]),  # small as it is
        (
            [(1, 16, 2, 90, 160), (1, 8, 1, 720, 1280)],
            [(1, 3, 8, 720, 1280)],
            [(1, 16, 2, 58, 48), (1, 8, 1, 464, 384)],
        ),
        ([(1, 3, 1000, 1000), (1, 8, 300, 300)], [(1, 8, 300, 300)], None),
        ([(1, 77)], [(1, 4, 64, 64)], None),
    ],
)
def test_small_shapes(inputs: Any, outputs: Any, small: Any) -> None:
    assert small_shapes(inputs, outputs) == small


@pytest.mark.parametrize(("rows", "strips"), slow_but([(79, 2)], [(80, 1), (79, 2), (8, 2)]))
def test_it_has_strips_where_the_run_has(rows: int, strips: int) -> None:
    tiny = TINY["AutoencoderKL"]
    module, z = tiny.build(), tiny.input("decode", 80, 96)
    with torch.no_grad(), reference_mode(module):
        graph = capture(module, lambda z: flatten(call_reference(module, "decode", z))[0], [z])
    graph = optimise(graph, subpixel=True, bias=False)
    cpu = torch.device("cpu")
    large = schedule(lower(graph, graph.bind([tuple(z.shape)]) or {}, cpu), rows)
    small = _small_plan(graph, large, Kernels(), cpu, channels_last=False)
    assert small is not None
    assert [small.program.ops[i].shape for i in small.program.inputs] == [(1, 4, 48, 48)]
    assert {len(segment.strips) for segment in small.segments} == {strips}


TOUCH = loading._touch


@pytest.fixture(autouse=True)
def touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing computes for the first time while the device is only a name."""
    monkeypatch.setattr(loading, "_touch", lambda *_: None)
    monkeypatch.setattr(loading, "_loaded", set())


@pytest.mark.parametrize("levels", [{"default": "native"}, {"default": "triton"}])
def test_a_gpu_is_touched_once_beside_a_capture(levels: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(loading, "_touch", lambda *args: asked.append((*args, threading.current_thread().name)))
    monkeypatch.setattr(Kernels, "prepare", lambda *_: None)
    with prepared(Kernels(levels), torch.bfloat16, torch.device("cpu"), 3):
        pass
    wait_for_all()
    assert not asked
    for _ in range(2):
        with prepared(Kernels(levels), torch.bfloat16, torch.device("cuda", 0), 3):
            pass
    wait_for_all()
    ((dtype, device, dims, thread),) = asked
    assert (dtype, device, dims) == (torch.bfloat16, torch.device("cuda", 0), 3)
    assert str(thread).startswith("tvae-beside")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_what_is_touched_can_be(dims: int, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    TOUCH(dtype, torch.device("cuda", 0), dims)


def test_levels_are_loaded_beside_a_capture_for_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    class Spy(Kernels):
        def prepare(self, dtype: torch.dtype, device: int) -> None:
            asked.append((dtype, device, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    triton = {"default": "triton"}
    with prepared(Spy(triton), torch.bfloat16, torch.device("cpu")):
        pass
    for levels in ({"default": "native"}, {"default": "compile"}, {**triton, "norm_act": "script"}):
        with prepared(Spy(levels), torch.bfloat16, torch.device("cuda")):
            pass
    assert not asked
    with prepared(Spy(triton), torch.bfloat16, torch.device("cuda")):
        pass
    with pytest.raises(KeyError), prepared(Spy({"conv_add": "cuda"}), torch.float16, torch.device("cuda", 1)):
        raise KeyError
    assert asked == [(torch.bfloat16, 3, False), (torch.float16, 1, False)]


def test_what_cannot_be_loaded_is_left_to_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Kernels):
        def prepare(self, dtype: torch.dtype, device: int) -> None:
            raise RuntimeError("no compiler")

    with (
        caplog.at_level("DEBUG", "tvae"),
        prepared(Broken({"default": "cuda"}), torch.bfloat16, torch.device("cuda", 0)),
    ):
        pass
    assert caplog.messages == ["not prepared"]
    assert "no compiler" in caplog.text


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_give_their_shapes_alone(dims: int, last: bool, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(dims + 2, torch.contiguous_format)
    order = layout if last else torch.contiguous_format
    x = torch.randn(2, 8, *(9, 12, 14)[:dims], device=device).contiguous(memory_format=order)
    weight = torch.randn(4, 8, *(3, 2, 3)[:dims], device=device).contiguous(memory_format=order)
    conv: Any = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
    back: Any = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[dims - 1]
    options = ({}, {"stride": 2, "padding": 1}, {"padding": [1, 0, 2][:dims], "dilation": 2})
    calls = [lambda more=more: conv(x, weight, None, **more) for more in options]
    turned = weight.transpose(0, 1).contiguous(memory_format=order)
    calls += [
        *(lambda more=more: back(x, turned, None, **more) for more in options),
        lambda: back(x[:, :4], weight[:, :2], None, stride=3, output_padding=2, groups=2),
    ]
    for call in calls:
        with _Unconvolved():
            ours = call()
        theirs = call()
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
        if device == "cuda" or last:
            assert ours.stride() == theirs.stride()


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 9), st.integers(1, 9), st.integers(1, 9)),
    last=st.booleans(),
    cut=st.integers(0, 4),
)
def test_layouts_are_told_as_pytorch_tells_them(shape: tuple[int, ...], last: bool, cut: int) -> None:
    x = torch.empty(shape).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    x = x[:, :, min(cut, shape[2] - 1) :]  # a strip's rows
    assert channels_innermost(x) == (suggest_memory_format(x) == torch.channels_last)


@pytest.mark.long
def test_convolutions_of_a_rehearsal_do_without_sympy() -> None:
    """Whose import takes 0.7 s of a command's first call."""
    code = (
        "import sys, torch; from tvae.pipeline.session.warmup import _Unconvolved\n"
        "had = 'sympy' in sys.modules\n"
        "x, weight = torch.ones(1, 2, 4, 4), torch.ones(2, 2, 1, 1)\n"
        "with _Unconvolved(): torch.conv2d(x, weight)\n"
        "print(had, 'sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_attention_is_asked_for_by_itself() -> None:
    """Once for each shape; with whole queries and keys, whatever strips are."""

    class Heads(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            tokens = x.flatten(2).transpose(1, 2).unsqueeze(1)
            for _ in range(2):
                tokens = F.scaled_dot_product_attention(tokens, tokens, tokens)
            return [F.silu(tokens)]

    asked: list[tuple[int, ...]] = []

    class Spy(Kernels):
        def wide_attention(self, q: Tensor, *others: Any) -> Tensor:
            asked.append(tuple(q.shape))
            return super().wide_attention(q, *others)

    module, x = Heads(), torch.randn(1, 320, 6, 8)
    graph = optimise(capture(module, module.forward, [x]), subpixel=True, bias=False)
    program = lower(graph, graph.bind([tuple(x.shape)]) or {}, torch.device("cpu"), Spy())
    _ask_for_attention(program, torch.device("cpu"))
    assert asked == [(1, 1, 48, 320)]
