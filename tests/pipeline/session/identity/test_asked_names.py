"""What the names in a model's own code stand for: its attributes, its ``training``, globals."""

from __future__ import annotations

from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline.session.identity.module_identity import identity_of


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mine = nn.Conv2d(3, 3, 1), 2.0

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x) * self.mine
        return h * 2 if self.training else h


mine = {1, TINY["AutoencoderKL"].build}
"""What cannot be digested, under the name of an attribute."""


def test_who_asks_for_training_is_another_model_in_training() -> None:
    model = Asking()
    first = identity_of(model)
    assert identity_of(model.eval()).digest != first.digest
    assert identity_of(model.train()).digest == first.digest


def test_an_attribute_is_no_global() -> None:
    """In a notebook the global of that name may hold anything."""
    first = identity_of(Asking())
    assert first.portable, first.why
