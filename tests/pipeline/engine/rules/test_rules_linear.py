"""Linear layers go through the operation ``linear``, strip by strip, with and without a bias."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from one_op import CPU, OneOp
from small_functions import captured, run
from told_kernels import telling
from torch import Tensor, nn

from tvae.kernels import Kernels
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute


@pytest.mark.parametrize("bias", [False, True])
def test_every_strip_is_one_call(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[tuple[int, ...], bool]] = []

    def note(operation: str, *args: Tensor | None) -> None:
        if operation == "linear":
            x, _, shift = args
            assert x is not None
            heard.append((tuple(x.shape), shift is not None))

    def fn(m: nn.Module, x: Tensor) -> Tensor:
        pixels = m.conv(x).permute(0, 2, 3, 1)
        return F.linear(pixels, m.conv.weight[:, :, 1, 1], m.conv.bias if bias else None).permute(0, 3, 1, 2)

    graph, module = captured(fn)
    x = torch.randn(1, 3, 8, 5, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(Kernels, "_chain", telling(note))
    found = run(simplify(graph), dict(module.named_parameters()), x, strip=3)
    assert heard == [((1, rows, 5, 3), bias) for rows in (3, 3, 2)]
    with torch.no_grad():
        torch.testing.assert_close(found, fn(module, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_two_pictures_are_rounded_once(dtype: torch.dtype) -> None:
    """Those of a stored value do not lie in a row."""
    g = OneOp(24, 24, dtype)
    x = g.call("cumsum.default", g.input(2, "h", "w", 12), 1)
    weight, bias = g.param(24, 12), g.param(24)
    g.gives(g.call("linear.default", x, weight, bias, shape=(2, "h", "w", 24)))
    wide = [g.value(v).double() for v in (x, weight, bias)]
    want = F.linear(*wide)
    (got,) = execute(schedule(lower(g.graph, g.sizes, CPU), 3), g.inputs(), g.weights)
    assert (got - want).norm() <= 1.02 * (g.values[-1] - want).norm()
