"""LoRA layers of peft: whatever their state says is told and seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_vaes import TINY
from torch import nn

from tvae.pipeline.session.identity.identity import identity_of

peft = pytest.importorskip("peft")


def with_lora(alpha: int = 4) -> nn.Module:
    """A tiny VAE whose attention and convolutions have adapters."""
    config = peft.LoraConfig(r=2, lora_alpha=alpha, target_modules=["to_q", "to_k", "to_v", "conv1"])
    return peft.inject_adapter_in_model(config, TINY["AutoencoderKL"].build())


def layers(model: nn.Module) -> list[Any]:
    found = [part for part in model.modules() if isinstance(part, peft.tuners.lora.LoraLayer)]
    assert len(found) > 4
    return found


def scaled(model: nn.Module) -> None:
    for layer in layers(model):
        layer.set_scale("default", 0.5)


def scaled_in_place(model: nn.Module) -> None:
    layers(model)[-1].scaling["default"] = 7.0


def disabled(model: nn.Module) -> None:
    for layer in layers(model):
        layer.enable_adapters(False)


def merged(model: nn.Module) -> None:
    for layer in layers(model):
        layer.merge()


def unscaled(model: nn.Module) -> None:
    for layer in layers(model):
        layer.set_scale("default", 1.0)


def enabled(model: nn.Module) -> None:
    for layer in layers(model):
        layer.enable_adapters(True)


def unmerged(model: nn.Module) -> None:
    for layer in layers(model):
        layer.unmerge()


@pytest.mark.parametrize(
    ("change", "undo"), [(scaled, unscaled), (scaled_in_place, None), (disabled, enabled), (merged, unmerged)]
)
def test_a_change_is_seen_and_told(
    change: Callable[[nn.Module], None], undo: Callable[[nn.Module], None] | None
) -> None:
    model = with_lora()
    first = identity_of(model)
    assert first.portable, first.why
    assert first.unchanged()
    change(model)
    assert not first.unchanged()
    second = identity_of(model)
    assert second.digest != first.digest
    if undo is not None:
        undo(model)
        assert not second.unchanged()
        assert identity_of(model).digest == first.digest


def test_the_configuration_of_adapters_counts() -> None:
    first = identity_of(with_lora())
    assert identity_of(with_lora()).digest == first.digest
    assert identity_of(with_lora(alpha=8)).digest != first.digest
    assert identity_of(TINY["AutoencoderKL"].build()).digest != first.digest
