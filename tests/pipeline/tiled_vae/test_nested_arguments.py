"""Lists, tuples and dictionaries as arguments: tensors in them vary from call to call, other values are baked in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.nested import apart, together
from tvae.pipeline.session import new_graph


class Scaled(nn.Module):
    """Takes statistics as a list of tensors, a shape as a tuple, and weights in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def encode(self, x: Tensor) -> tuple[Tensor]:
        return (x,)

    def decode(
        self, z: Tensor, scale: Any = (0.0, 1.0), target_shape: Any = None, more: Any = None, dtype: Any = None
    ) -> tuple[Tensor]:
        mean, factor = scale
        z = z / factor + mean if isinstance(mean, Tensor) else z * factor + mean
        h = self.norm(self.first(z))
        if more is not None:
            h = h * more["gain"] + more["by_name"]["shift"]
        if target_shape is not None:
            h = F.interpolate(h, target_shape[-2:])
        return (self.last(h) if dtype is None else self.last(h).to(dtype),)


def statistics(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(1, 4, 1, 1, generator=generator) + 0.5 for _ in range(2)]


def alike(tiled: TiledVAE, model: Scaled, z: Tensor, **kwargs: Any) -> None:
    with torch.no_grad():
        (want,) = model.decode(z, **kwargs)
    (got,) = tiled.decode(z, **kwargs)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.fixture
def model() -> Scaled:
    return Scaled().eval()


@pytest.mark.long
def test_tensors_in_containers_vary_and_the_rest_is_baked_in(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = new_graph.capture
    monkeypatch.setattr(new_graph, "capture", lambda *a, **k: made.append(1) or real(*a, **k))
    tiled = TiledVAE(model)
    z = torch.randn(1, 4, 12, 10)
    for seed in (1, 2):
        alike(tiled, model, z, scale=statistics(seed))
    assert len(made) == 1, "other statistics are no other graph"
    alike(tiled, model, z, scale=tuple(statistics(3)))
    alike(tiled, model, z, scale=(0.5, 2.0))
    alike(tiled, model, z, scale=(0.25, 2.0))
    assert len(made) == 4
    alike(tiled, model, z, target_shape=(1, 3, 24, 20))
    alike(tiled, model, z, target_shape=torch.Size([1, 3, 24, 20]), dtype=torch.float64)
    by_name = {"gain": 2.0, "by_name": {"shift": torch.randn(1, 8, 1, 1)}}
    alike(tiled, model, z, scale=statistics(4), more=by_name)
    alike(tiled, model, z, scale=statistics(5), more=by_name | {"gain": 3.0})


def test_a_plan_takes_them_too(model: Scaled) -> None:
    plan = TiledVAE(model).plan((1, 4, 12, 10), "decode", scale=statistics(1))
    assert plan.peak_bytes > 0


def test_what_is_neither_a_tensor_nor_plain_is_refused_by_its_place(model: Scaled, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"argument 'scale\[1\]' is a PosixPath|is a WindowsPath"):
        TiledVAE(model).decode(torch.randn(1, 4, 12, 10), scale=[1.0, tmp_path])


@pytest.mark.parametrize(
    "value",
    [
        [1, (2.5, "a"), {"x": None, 3: [True]}],
        torch.Size([1, 2]),
        (torch.float16, torch.device("cpu"), torch.channels_last),
        [torch.ones(2), {"t": (torch.zeros(1), 4)}],
        [],
    ],
)
def test_apart_and_together_again(value: Any) -> None:
    tensors: dict[str, Tensor] = {}
    found = apart(value, "v", tensors)
    again = together(found, tensors)
    assert repr(again) == repr(value)
    assert type(again) is type(value)
    assert hash(found) is not None
    assert "tensor(" not in repr(found)
