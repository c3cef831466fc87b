"""Parts of a model under ``torch.autocast``: the casts of its own call, at the same places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.errors import UnsupportedOp

C = 8


class Autocast(nn.Module):
    """A function of a map, between the convolutions of a model."""

    def __init__(self, fn: Callable[[Any, Tensor], Tensor], **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.conv, self.norm = (
            nn.Conv2d(3, C, 3, padding=1),
            nn.Conv2d(C, C, 3, padding=1),
            nn.GroupNorm(2, C),
        )
        self.linear, self.heads = nn.Linear(C, C), nn.MultiheadAttention(C, 2, batch_first=True)
        self.rnn = nn.GRU(C, C, batch_first=True)
        self.fn, self.settings = fn, {"device_type": "cpu", "dtype": torch.bfloat16} | settings

    def encode(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.autocast(**self.settings):
            return self.fn(self, h)

    def decode(self, x: Tensor) -> Tensor:
        return self.first(x)


def block(m: Any, h: Tensor) -> Tensor:
    return h + m.conv(F.silu(m.norm(m.conv(F.silu(m.norm(h))))))


def attention(m: Any, h: Tensor) -> Tensor:
    """Operands of two types, which are cast to one."""
    tokens = h.flatten(2).transpose(1, 2)
    q = m.linear(tokens)[:, None]
    return F.scaled_dot_product_attention(q, q, tokens[:, None])[:, 0].transpose(1, 2).reshape(h.shape)


def products(m: Any, h: Tensor) -> Tensor:
    tokens = m.conv(h).flatten(2).transpose(1, 2)
    weights = (tokens @ tokens.transpose(1, 2) * C**-0.5).softmax(-1)
    return torch.bmm(weights, tokens).transpose(1, 2).reshape(h.shape)


def several_heads(m: Any, h: Tensor) -> Tensor:
    tokens = h.flatten(2).transpose(1, 2)
    return m.heads(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(h.shape)


def einsum(m: Any, h: Tensor) -> Tensor:
    """It is cast after its operands have been turned."""
    return torch.einsum("bchw,bdhw->bcd", h, h)[..., None] + h.mean((2, 3))[:, None, :, None]


def both_types(m: Any, h: Tensor) -> Tensor:
    return torch.cat([h, m.conv(h)], 1) + torch.stack([m.conv(h), h], 1).flatten(1, 2)


def widened(m: Any, h: Tensor) -> Tensor:
    return F.avg_pool2d(m.conv(h), 3, 1, 1) + F.interpolate(m.conv(h), scale_factor=2.0)[:, :, ::2, ::2]


def statistics(m: Any, h: Tensor) -> Tensor:
    y = m.conv(h)
    return y.softmax(1) + y.sum((2, 3), keepdim=True) + F.normalize(y, dim=1) + y.std(1, keepdim=True)


def in_place(m: Any, h: Tensor) -> Tensor:
    y = m.conv(h)
    y += h
    y[:, :, 0] = h[:, :, 0]
    return F.relu_(y)


def nested(m: Any, h: Tensor) -> Tensor:
    a = m.conv(h)
    with torch.autocast("cpu", enabled=False):
        b = m.conv(m.norm(a.to(h)))
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        c = m.conv(b)
    return a + b + c


class Doubled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x * 2


def custom_forward(m: Any, h: Tensor) -> Tensor:
    y: Tensor = Doubled.apply(m.conv(h))
    return y


FUNCTIONS = [
    block,
    attention,
    products,
    several_heads,
    einsum,
    both_types,
    widened,
    statistics,
    in_place,
    nested,
    custom_forward,
]


@contextmanager
def no_autocast() -> Iterator[None]:
    with (
        mock.patch.object(torch.autocast, "__enter__", lambda self: self),
        mock.patch.object(torch.autocast, "__exit__", return_value=None),
    ):
        yield


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_it_is_as_exact_as_the_models_own_call(fn: Callable[[Any, Tensor], Tensor]) -> None:
    model = Autocast(fn).eval()
    tiled, ours, own = TiledVAE(model, "cpu", strip=3), 0.0, 0.0
    wide = Autocast(fn).eval().double()
    for size in ((16, 12), (21, 12), (40, 9)):
        x = torch.randn(1, 3, *size)
        want, got = model.encode(x), tiled.encode(x)
        assert got.dtype == want.dtype
        with no_autocast():
            exact = wide.encode(x.double())
        own += float((want - exact).norm() / exact.norm())
        ours += float((got - exact).norm() / exact.norm())
    assert own > 1e-4, "the part is not in another precision"
    assert ours <= 1.02 * own
    assert tiled.plan((1, 3, 21, 12), "encode").strips > 1


@torch.no_grad()
@pytest.mark.parametrize("settings", [{"dtype": torch.float16}, {"dtype": None}, {"cache_enabled": False}], ids=str)
def test_settings_of_a_region(settings: dict[str, Any]) -> None:
    model = Autocast(lambda m, h: m.conv(h), **settings).eval()
    x = torch.randn(1, 3, 20, 12)
    torch.testing.assert_close(TiledVAE(model, "cpu", strip=3).encode(x), model.encode(x), rtol=2e-3, atol=2e-3)


@torch.no_grad()
def test_no_size_becomes_a_constant() -> None:
    model = Autocast(widened).eval()
    graph = capture(model, lambda x: [model.encode(x)], [torch.zeros(1, 3, 16, 12)])
    assert graph.bind([(1, 3, 50, 30)]) is not None


@pytest.mark.long
def test_what_casts_inside_is_refused_by_name() -> None:
    def fn(m: Any, h: Tensor) -> Tensor:
        rows = h.permute(0, 2, 3, 1).flatten(0, 1)
        y: Tensor = m.rnn(rows)[0]
        return y

    model = Autocast(fn).eval()
    with pytest.raises(UnsupportedOp, match="bfloat16 precision") as caught:
        capture(model, lambda x: [model.encode(x)], [torch.zeros(1, 3, 6, 6)])
    assert (caught.value.op, caught.value.module) == ("aten.gru.input", "rnn")
