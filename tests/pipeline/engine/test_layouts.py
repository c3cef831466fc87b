"""Operands lie as the kernels of a GPU want them: whatever copies them for want of that takes memory and time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from of_convolutions import OfConvolutions
from slow_but import slow_but
from sweeping.families import build, swept
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tvae.kernels.operations import wide_attention
from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.layout import repeated
from tvae.pipeline.engine.rules import attention
from tvae.pipeline.session import runner, session

CPU = torch.device("cpu")
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize(("name", "batch"), slow_but([], [("hunyuan", 2), ("hunyuan15", 1)]))
def test_tokens_of_an_attention_lie_in_rows(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a buffer: one head of it had a step of one, which PyTorch's kernels for GPUs refuse."""
    of, steps = swept(True)[name], []
    module = nn.Module.to(build(of, CPU), torch.bfloat16)
    attend = F.scaled_dot_product_attention

    def spied(*args: Any, **kwargs: Any) -> Tensor:
        steps.extend(x.stride() for x in args[:3])
        return attend(*args, **kwargs)

    tiled = TiledVAE(module, "h200", strip=3)
    monkeypatch.setattr(attention, "functional", SimpleNamespace(scaled_dot_product_attention=spied))
    z = torch.randn(batch, of.geometry.latent_channels, 2, 6, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        tiled.decode(z)
    assert steps
    assert all(step[-1] == 1 and not any(n % 8 for n in step[:-1]) for step in steps)


@pytest.mark.parametrize(("heads", "width", "causal"), [(1, 288, False), (1, 32, False), (2, 16, False), (2, 16, True)])
@pytest.mark.parametrize("strip", [None, 4])
def test_operands_of_convolutions_are_laid_in_rows(
    heads: int, width: int, causal: bool, strip: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, where channels lie outside: PyTorch's plain way would hold all weights, which no plan counts."""
    torch.manual_seed(2)
    model, steps = OfConvolutions(heads, width, causal=causal).eval(), []
    x, attend = torch.randn(2, 3, 12, 10), F.scaled_dot_product_attention

    def spied(*args: Any, **kwargs: Any) -> Tensor:
        steps.extend(y.stride()[-1] for y in args[:3])
        return attend(*args, **kwargs)

    functional = SimpleNamespace(scaled_dot_product_attention=spied)
    monkeypatch.setattr(session, "uses_channels_last", lambda *_: False)  # as in float32 on a GPU
    monkeypatch.setattr(attention, "functional", functional)
    monkeypatch.setattr(wide_attention, "functional", functional)
    with torch.no_grad():
        found = TiledVAE(model, strip=strip).encode(x)
        torch.testing.assert_close(found, model.encode(x), rtol=0, atol=1e-5)
    assert steps
    assert {*steps} == {1}


@given(
    shape=st.lists(st.integers(1, 4), min_size=3, max_size=5),
    times=st.integers(1, 3),
    dim=st.integers(0, 4),
    last=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_repeated_elements_keep_the_layout(shape: list[int], times: int, dim: int, last: bool) -> None:
    x = torch.randn(shape)
    x = x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x
    dim %= x.ndim
    y = repeated(x, times, dim)
    assert torch.equal(y, x.repeat_interleave(times, dim))
    if last and dim > 1 and x.shape[1] > 1:
        assert y.movedim(1, -1).is_contiguous()


class _Layouts(TorchFunctionMode):
    """The layouts of what is convolved: are the channels inside? Results have them where inputs do, as on a GPU; a
    processor without 16-bit kernels has them outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.conv2d, F.conv3d) and args[0].shape[1] > 1 and isinstance(args[0].stride(1), int):
            self.inside.append(args[0].stride(1) == 1)
            y = func(*args, **(kwargs or {}))
            return y.contiguous(memory_format=LAST[y.ndim]) if self.inside[-1] else y
        return func(*args, **(kwargs or {}))


LENGTHS = [("decode", 1), ("decode", 2), ("encode", 1), ("encode", 9)]


@pytest.mark.long
@pytest.mark.parametrize(("side", "frames"), slow_but([("decode", 2)], LENGTHS))
def test_channels_stay_inside_of_a_clips_frames(side: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The views that make a batch of one frame gave it a step that told PyTorch of another layout, and means of pairs
    of frames lay frame by frame within each pixel."""
    of = swept(True)["cogvideox"]
    tiled = TiledVAE(nn.Module.to(build(of, CPU), torch.bfloat16), "h200")
    sizes = (of.geometry.latent_channels, frames, 6, 8) if side == "decode" else (3, frames, 48, 64)
    x = torch.randn(1, *sizes, dtype=torch.bfloat16)
    layouts, execute = _Layouts(), runner.execute

    def watched(*args: Any, **more: Any) -> Any:
        with layouts:  # around the call itself it would be refused
            return execute(*args, **more)

    with torch.no_grad():
        getattr(tiled, side)(x)
        monkeypatch.setattr(runner, "execute", watched)
        getattr(tiled, side)(x)
    assert len(layouts.inside) > 10
    assert all(layouts.inside[1:])  # the first has the input, as the caller laid it out
