"""Operations that draw random numbers: which calls do, and the copies that those read, which plans count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from inside import runners_of
from live_bytes import LiveBytes
from tiny_vaes import waves
from torch import Tensor
from uncut_models import Uncut

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import Node, Ref
from tvae.pipeline.engine.rules.context import draws
from tvae.pipeline.errors import UnsupportedOp

X = Ref(0)
GRU = X, X, [X], True, 1


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        ("aten.bernoulli.default", (X,), {}, True),
        ("aten.multinomial.default", (X, 3), {}, True),
        ("aten.gru.input", (*GRU, 0.0, False, False, True), {}, False),
        ("aten.gru.input", (*GRU, 0.5, True, False, True), {}, True),
        ("aten.dropout.default", (X, 0.5, False), {}, False),
        ("aten.dropout.default", (X, 0.5, True), {}, True),
        ("aten.scaled_dot_product_attention.default", (X, X, X, None, 0.0), {}, False),
        ("aten.scaled_dot_product_attention.default", (X, X, X), {}, False),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", (X, X, X), {"dropout_p": 0.1}, True),
        ("aten.rrelu_with_noise.default", (X, X), {"training": False}, False),
        ("aten.sin.default", (X,), {}, False),
        ("tvae.conv_add", (X,), {}, False),
    ],
)
def test_only_some_calls_draw(target: str, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool) -> None:
    assert draws(Node("call", target, args, kwargs)) is expected


class Dropped(Uncut):
    """Drops values in evaluation mode, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def between(self, h: Tensor) -> Tensor:
        if self.kind == "attention":
            return F.scaled_dot_product_attention(h, h, h, dropout_p=0.3)
        dropped: Tensor = getattr(F, self.kind)(h, 0.3, training=True)
        return dropped


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dropout", "dropout2d", "alpha_dropout", "attention"])
def test_what_drops_values_at_random_is_not_computed_strip_by_strip(kind: str) -> None:
    """Other values would be dropped than the model drops with the same generator."""
    torch.manual_seed(3)
    model, x = Dropped(kind).eval(), waves((1, 3, 24, 20))
    with pytest.raises(UnsupportedOp, match=r"random numbers.*allow_whole"):
        TiledVAE(model, strip=4).decode(x)
    torch.manual_seed(5)
    want = model.decode(x)
    torch.manual_seed(5)
    torch.testing.assert_close(TiledVAE(model, strip=4, allow_whole=True).decode(x), want, rtol=1e-4, atol=1e-5)


class Drawn(Uncut):
    """Each value is kept by chance, as often as it says."""

    def between(self, h: Tensor) -> Tensor:
        return self.norm(torch.bernoulli(h.sigmoid()))


def test_the_copy_that_is_drawn_from_is_in_the_plan() -> None:
    torch.manual_seed(3)
    model, x = Drawn().eval(), waves((1, 3, 48, 256))
    tiled = TiledVAE(model, allow_whole=True, strip=16)
    tiled.decode(x)
    prepared = [t for runner in runners_of(tiled) for t in runner._constants.values()]
    with torch.no_grad(), LiveBytes([*model.parameters(), *prepared]) as live:
        tiled.decode(x)
    assert live.peak <= 1.08 * tiled.plan(tuple(x.shape), "decode").peak_bytes
