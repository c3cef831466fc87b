"""Conditions on sizes that the exporter's solver fails on are guards like others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import DimConstraints

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.capture import capture


class Windows(nn.Module):
    """Counts windows as window attention does: rows are padded to a multiple of four, and two windows are special."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        rows = x.shape[-2] // 4
        padded = rows + (4 - rows % 4) % 4
        count = padded // 4
        return self.conv(x) * 2 if count * (padded // count) // 2 == 2 else self.conv(x) - 1

    decode = encode


@pytest.mark.parametrize("order", [(8, 16, 20, 36), (36, 8, 11, 20)])
def test_either_side_of_such_a_condition_is_the_models_own(order: tuple[int, ...]) -> None:
    model = Windows()
    tiled = TiledVAE(model, "cpu", strip=2)
    for rows in order:
        x = torch.randn(2, 3, rows, 8)
        with torch.no_grad():
            torch.testing.assert_close(tiled.encode(x), model.encode(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("error", [NotImplementedError, AssertionError, ValueError])
def test_a_failing_solver_changes_no_graph(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(x: Tensor, mask: Tensor) -> list[Tensor]:
        return [nn.functional.avg_pool2d(x, 2) * mask + (1 if x.shape[-1] > 8 else 0)]

    inputs = [torch.zeros(1, 3, 8, 12), torch.zeros(1, 1, 4, 6)]
    solved = capture(nn.Identity(), halves, inputs)

    def solve(_constraints: DimConstraints) -> None:
        raise error("cannot be solved")

    monkeypatch.setattr(DimConstraints, "solve", solve)
    assert capture(nn.Identity(), halves, inputs).to_json() == solved.to_json()
    with pytest.raises(error):  # elsewhere it fails as it did
        DimConstraints.solve(None)  # type: ignore[arg-type]
