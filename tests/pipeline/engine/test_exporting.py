"""What the exporter is spared makes no difference to what it gives, and leaves no trace."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import fake_impls

from tvae.pipeline.engine import exporting as settings
from tvae.pipeline.engine.capture import capture
from tvae.pipeline.engine.exporting import exporting


class Norms(nn.Module):
    """A norm with an affine map and one without, among operations that ask how values lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.plain = nn.GroupNorm(2, 8), nn.GroupNorm(4, 8, affine=False)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.plain(self.conv(F.silu(self.norm(x))))
        b, c, h, w = y.shape
        return (y.reshape(b, c, h * w).transpose(1, 2).reshape(b, h, w, c).permute(0, 3, 1, 2) + x).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_graph_is_the_exporters_own(
    dtype: torch.dtype, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Norms().to(dtype)
    x = torch.randn(1, 8, 12, 10).to(dtype).contiguous(memory_format=layout)
    run: Callable[[Tensor], list[Tensor]] = lambda x: [module(x)]  # noqa: E731
    ours = capture(module, run, [x])
    monkeypatch.setattr(settings, "_plain_group_norm", nullcontext)
    theirs = capture(module, run, [x])
    assert ours.nodes == theirs.nodes
    assert (ours.inputs, ours.outputs, ours.row_symbol) == (theirs.inputs, theirs.outputs, theirs.row_symbol)
    for shape in ((1, 8, 12, 10), (1, 8, 40, 24), (1, 8, 7, 33)):
        assert ours.bind([shape]) == theirs.bind([shape]) is not None


def test_everything_is_as_before_afterwards() -> None:
    import torch._dynamo.config
    import torch.fx.config

    def state() -> tuple[object, ...]:
        known = dict(fake_impls.get_fast_op_impls())
        return (
            torch._dynamo.config.fake_tensor_cache_enabled,
            torch.fx.config.do_not_emit_stack_traces,
            known,
            logging.root.manager.disable,
        )

    before = state()
    with exporting():
        assert state() != before
    assert state() == before
