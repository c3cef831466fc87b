"""What counts for a model's digest and what does not, and which models cannot be digested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from swapped import louder
from tiny_vaes import TINY
from torch import nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.identity.identity import identity_of

SMALL = TINY["AutoencoderKL"]


def test_nothing_changes_by_running_the_model() -> None:
    model = SMALL.build()
    first = identity_of(model)
    with torch.no_grad(), reference_mode(model):
        for side in ("encode", "decode"):
            call_reference(model, side, SMALL.input(side, 4, 4))
    assert all(first.unchanged() for _ in range(100))
    assert identity_of(model).digest == first.digest


def test_tiling_and_training_do_not_count() -> None:
    model = SMALL.build()
    first = identity_of(model)
    model.enable_tiling()
    model.enable_slicing()
    assert first.unchanged()
    plain = TINY["AutoencoderTiny"].build()
    assert identity_of(plain).digest == identity_of(plain.train()).digest
    model.decoder.use_tiling = True  # a part's own attribute is no switch
    assert identity_of(model).digest != first.digest


@torch.no_grad()
def test_weights_are_watched_and_not_told() -> None:
    model, other = SMALL.build(), SMALL.build(seed=5)
    first = identity_of(model)
    model.load_state_dict(other.state_dict())
    assert not first.unchanged()
    assert identity_of(model).digest == first.digest
    model.decoder.conv_in.weight = nn.Parameter(torch.zeros_like(model.decoder.conv_in.weight))
    assert identity_of(model).digest == first.digest
    second = identity_of(model)
    model.decoder.conv_in.weight.data = model.decoder.conv_in.weight.data.clone()
    assert not second.unchanged()


def test_a_parameter_of_one_number_that_is_exchanged_for_an_equal_one_is_seen() -> None:
    model = SMALL.build()
    model.gain = nn.Parameter(torch.ones(1))
    first = identity_of(model)
    model.gain = nn.Parameter(torch.ones(1))
    assert not first.unchanged()


def test_another_type_is_seen_of_tensors_that_lie_nowhere() -> None:
    model = nn.Conv2d(2, 2, 1, device="meta")
    first = identity_of(model)
    assert first.unchanged()
    model.half()
    assert not first.unchanged()
    assert identity_of(model).digest != first.digest


def test_tied_weights_are_not_two_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    apart = identity_of(model).digest
    model[1].weight = model[0].weight
    assert identity_of(model).digest != apart


def test_a_tensor_that_is_no_parameter_counts_by_value() -> None:
    model = SMALL.build()
    model.shift = torch.tensor([1.0, 2.0])
    first = identity_of(model)
    model.shift.add_(1)
    assert not first.unchanged()
    second = identity_of(model)
    assert second.digest != first.digest
    model.shift = torch.tensor([1.0, 2.0])
    assert not second.unchanged()
    assert identity_of(model).digest == first.digest


def test_an_array_counts_by_value() -> None:
    model = SMALL.build()
    model.table = np.arange(4.0)
    first = identity_of(model)
    assert first.unchanged()
    model.table[1] = 5
    assert not first.unchanged()
    assert identity_of(model).digest != first.digest


def test_what_cannot_be_digested_keeps_a_graph_off_the_disk() -> None:
    model, other = SMALL.build(), SMALL.build()
    for each in (model, other):
        each.decoder.noise = torch.Generator()
    first, second = identity_of(model), identity_of(other)
    assert not first.portable
    assert first.why == "decoder.noise: an object of class Generator"
    assert first.digest != second.digest
    assert identity_of(model).digest == first.digest
    model.decoder.noise = torch.Generator()
    assert not first.unchanged()
    assert identity_of(model).digest != first.digest


def test_accelerates_way_of_moving_a_model_is_no_change() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = SMALL.build()
    first = identity_of(model)
    hooks.add_hook_to_module(model, hooks.CpuOffload("cpu"))
    assert identity_of(model).digest == first.digest
    hooks.add_hook_to_module(model, hooks.ModelHook(), append=True)  # may do anything
    assert identity_of(model).digest != first.digest


def test_a_forward_patched_under_accelerates_is_seen() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = SMALL.build()
    first = identity_of(model)
    model.forward = louder(model.forward)
    hooks.add_hook_to_module(model, hooks.CpuOffload("cpu"))
    assert not first.unchanged()
    assert identity_of(model).digest != first.digest


def test_notes_in_the_configuration_do_not_count() -> None:
    model = SMALL.build()
    first = identity_of(model).digest
    model.register_to_config(_name_or_path="elsewhere")
    assert identity_of(model).digest == first
    model.register_to_config(scaling_factor=3.0)
    assert identity_of(model).digest != first


@pytest.mark.parametrize("name", sorted(TINY))
def test_every_family_is_portable(name: str) -> None:
    found = identity_of(TINY[name].build())
    assert found.portable, found.why
    assert found.unchanged()
    assert identity_of(TINY[name].build(seed=4)).digest == found.digest


@pytest.mark.slow
def test_a_capture_is_no_change() -> None:
    """What PyTorch loads when it is asked for a graph, and what a capture does to the model, is none."""
    model = SMALL.build()
    first = identity_of(model)
    TiledVAE(model).decode(SMALL.input("decode", 6, 5))
    assert first.unchanged()
    assert identity_of(model).digest == first.digest


def hooked(hook: Callable[..., Any], **flags: bool) -> str:
    model = nn.Sequential(nn.ReLU())
    model[0].register_forward_hook(hook, **flags)
    found = identity_of(model)
    assert found.portable
    return found.digest


def test_what_code_says_is_told() -> None:
    def plain(part: nn.Module, args: Any, out: Any) -> Any:
        return out

    digests = [hooked(lambda part, args, out: out * 2), hooked(lambda part, args, out: out * 3)]
    digests += [hooked(lambda part, args, out: out + 2), hooked(lambda part, args, out: [out * n for n in (1, 2)])]
    digests += [hooked(lambda part, args, out: [out * n for n in (1, 3)]), hooked(plain)]
    digests += [hooked(plain, with_kwargs=True), hooked(plain, always_call=True)]
    assert len(set(digests)) == len(digests)


def test_weights_of_a_module_outside_the_tree_are_not_portable() -> None:
    def hooked() -> nn.Module:
        model, outside = SMALL.build(), nn.Linear(2, 2)
        model.decoder.register_forward_hook(lambda part, args, out: outside(out))
        return model

    first = identity_of(hooked())
    assert not first.portable
    assert "Linear that is no part of the model" in first.why
    assert identity_of(hooked()).digest != first.digest
