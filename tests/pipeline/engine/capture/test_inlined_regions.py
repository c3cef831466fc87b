"""Parts of a model under ``torch.autocast`` for another device, or switched off, are in the graph as they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_functions import run
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.errors import UnsupportedOp


class Region(nn.Module):
    """A block that computes a part of itself under other settings."""

    def __init__(self, kind: str, *, enabled: bool) -> None:
        super().__init__()
        self.kind, self.enabled = kind, enabled
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.kind, dtype=torch.bfloat16, enabled=self.enabled):
            mean, y = x.mean((2, 3), keepdim=True), F.silu(self.norm(x))
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                z = y.float() * 2
            x = x.add_(1.0)
        return z - mean + x


class Model(nn.Module):
    def __init__(self, kind: str, *, enabled: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.Sequential(Region(kind, enabled=enabled), Region(kind, enabled=enabled))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.first(x))


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize(("kind", "enabled"), [("cpu", False), ("cuda", False), ("cuda", True)])
def test_what_changes_no_number_is_in_line(kind: str, enabled: bool) -> None:
    module = Model(kind, enabled=enabled).eval()
    x = torch.randn(1, 3, 7, 5)
    graph = capture(module, lambda x: [module(x)], [torch.zeros(1, 3, 6, 6)])
    want = module(x)
    assert {n.module for n in graph.nodes if n.op == "group_norm"} == {"blocks.0.norm", "blocks.1.norm"}
    torch.testing.assert_close(run(simplify(graph), module.state_dict(), x), want.detach(), rtol=1e-5, atol=1e-5)


def test_without_weights_another_precision_is_refused_by_name() -> None:
    """Which operations are cast depends on the device."""
    module = Model("cpu", enabled=True).eval().to("meta")
    with pytest.raises(UnsupportedOp, match="bfloat16 precision") as caught:
        capture(module, lambda x: [module(x)], [torch.zeros(1, 3, 6, 6, device="meta")])
    assert caught.value.op == "torch.autocast"
    assert caught.value.module.startswith("blocks.0")
