"""A capture leaves nothing behind that knows the model: its weights can be swapped, and no program stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp

X = torch.randn(1, 3, 9, 6)


class Model(ModelOfFunction):
    def encode(self, x: Tensor) -> Tensor:
        return self.of(self, self.conv(x))  # type: ignore[no-any-return]

    decode = encode


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapping")
@torch.no_grad()
def test_weights_are_swapped() -> None:
    model = Model(lambda _model, h: h.relu()).eval()
    tiled = TiledVAE(model, "cpu", strip=2)
    tiled.encode(X)
    model.load_state_dict({name: 2 * weight for name, weight in model.state_dict().items()})
    assert torch.allclose(tiled.encode(X), model.encode(X), atol=1e-6)
    tiled.double()
    assert torch.allclose(tiled.encode(X.double()), model.encode(X.double()))
    torch.utils.swap_tensors(model.conv.weight, nn.Parameter(torch.randn(model.conv.weight.shape).double()))
    assert torch.allclose(tiled.encode(X.double()), model.encode(X.double()))


def test_weights_of_a_model_that_cannot_be_captured() -> None:
    model = Model(lambda _model, h: h if h.sum() > 0 else -h).eval()
    with pytest.raises(UnsupportedOp, match="goes by the values"):
        TiledVAE(model, "cpu").encode(X)
    assert not weakref.getweakrefs(model.conv.weight)


@torch.no_grad()
def test_no_program_stays() -> None:
    """PyTorch's own cache keeps the symbols."""
    kept, tiled = [], TiledVAE(Model(lambda _model, h: h.relu()).eval(), "cpu")
    for batch in (2, 3, 4):
        tiled.encode(X.expand(batch, -1, -1, -1))
        gc.collect()
        kept.append(sum(type(held) is FakeTensorMode for held in gc.get_objects()))
    assert kept[0] == kept[1] == kept[2]
