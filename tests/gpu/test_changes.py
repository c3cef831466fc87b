"""A model that is changed between calls gives its new numbers, every one of them: runs that come again, replays of
recorded ones, and runs of new sizes begin before the model is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sweeping.families import build, swept
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CARD = torch.device("cuda", 0)
Change = Callable[[nn.Module], object]


def convolution(model: nn.Module) -> nn.Conv2d:
    return [part for part in model.decoder.modules() if isinstance(part, nn.Conv2d)][2]  # type: ignore[operator, union-attr]


def through_data(model: nn.Module) -> None:
    convolution(model).weight.data.mul_(1.5)


def other_data(model: nn.Module) -> None:
    weight = convolution(model).weight
    weight.data = weight.data.flip(0).clone()


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        convolution(model).weight.add_(0.01)


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: value * 1.01 for name, value in model.state_dict().items()})


def hooked(model: nn.Module) -> None:
    convolution(model).register_forward_hook(lambda _part, _args, out: out * 0.5)


def not_hooked(model: nn.Module) -> None:
    convolution(model)._forward_hooks.clear()


def freed(model: nn.Module) -> None:
    """As sharded training frees a weight that it has elsewhere: the memory is the device's again."""
    weight = convolution(model).weight
    kept = weight.detach().cpu() * 0.5
    weight.untyped_storage().resize_(0)
    torch.cuda.empty_cache()
    weight.data = kept.to(CARD)


def away_and_back(model: nn.Module) -> None:
    nn.Module.to(nn.Module.to(model, "cpu"), CARD)


def changed_away(model: nn.Module) -> None:
    nn.Module.to(model, "cpu")
    through_data(model)
    nn.Module.to(model, CARD)


def rounded(model: nn.Module) -> None:
    nn.Module.to(nn.Module.to(model, torch.bfloat16), torch.float32)


def reflected(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            part.padding_mode = "reflect"
            part._reversed_padding_repeated_twice = [n for n in reversed(part.padding) for _ in range(2)]  # type: ignore[list-item]


def other_layer(model: nn.Module) -> None:
    own = convolution(model)
    for part in model.decoder.modules():  # type: ignore[operator, union-attr]
        for name, child in part.named_children():
            if child is own:
                setattr(part, name, nn.Sequential(own, nn.Tanh()))
                return


def nothing(model: nn.Module) -> None:
    del model


CHANGES: list[Change] = [
    nothing,
    through_data,
    other_data,
    freed,
    in_place,
    loaded,
    hooked,
    through_data,
    not_hooked,
    away_and_back,
    changed_away,
    rounded,
    reflected,
    through_data,
    other_layer,
]


def decoded(model: nn.Module, z: Tensor) -> tuple[Tensor, float]:
    """In float64, and the error that ours may have: that of float32 itself is larger where random weights say so."""
    own = model.decode(z).sample  # type: ignore[operator]
    exact = nn.Module.to(model, torch.float64).decode(z.double()).sample  # type: ignore[operator]
    nn.Module.to(model, torch.float32)
    return exact, max(1e-5, 1.02 * error_of(own, exact))


def error_of(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("before", [2, RECORDED_AT + 1])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", ["taesd", "sdxl"])
@torch.no_grad()
def test_each_call_has_the_numbers_of_its_moment(name: str, backwards: bool, before: int) -> None:
    """before: calls of each size ahead of each change."""
    of = swept(False)[name]
    model = nn.Module.to(build(of, CARD, seed=3), torch.float32)
    tiled = TiledVAE(model, "h200")
    sizes = [torch.randn(1, of.geometry.latent_channels, rows, 40, device=CARD) for rows in (24, 32)]
    changes = [c for c in reversed(CHANGES) if c is not not_hooked] if backwards else CHANGES
    for change in changes:
        for z in sizes:
            for _ in range(before):
                tiled.decode(z)
        change(model)
        found = [[tiled.decode(z).sample.clone() for _ in range(RECORDED_AT + 1)] for z in sizes]
        for z, calls in zip(sizes, found, strict=True):
            exact, most = decoded(model, z)
            for number, each in enumerate(calls):
                assert error_of(each, exact) <= most, (change.__name__, number)


@pytest.mark.parametrize("backwards", [False, True])
@torch.no_grad()
def test_the_first_call_of_a_size_has_the_numbers_of_its_moment(backwards: bool) -> None:
    of = swept(False)["sdxl"]
    model = nn.Module.to(build(of, CARD, seed=3), torch.float32)
    tiled = TiledVAE(model, "h200")
    known = torch.randn(1, of.geometry.latent_channels, 24, 40, device=CARD)
    changes = [c for c in reversed(CHANGES) if c is not not_hooked] if backwards else CHANGES
    for number, change in enumerate(changes):
        for _ in range(3):
            tiled.decode(known)
        change(model)
        for rows in (26 + 2 * number, 27 + 2 * number):
            z = torch.randn(1, of.geometry.latent_channels, rows, 40, device=CARD)
            found = tiled.decode(z).sample.clone()
            exact, most = decoded(model, z)
            assert error_of(found, exact) <= most, (change.__name__, rows)
