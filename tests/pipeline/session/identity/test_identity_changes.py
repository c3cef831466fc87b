"""What changes a model's numbers changes its digest and is seen; undone, the digest is the first again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import pytest
import torch
from swapped import louder, swapped
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline.session.identity.identity import identity_of

Change = Callable[[nn.Module], Iterator[None]]


def parts(model: nn.Module, kind: type) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, kind)]


def padding_mode(model: nn.Module) -> Iterator[None]:
    for conv in parts(model, nn.Conv2d):
        conv.padding_mode = "circular"
    yield
    for conv in parts(model, nn.Conv2d):
        conv.padding_mode = "zeros"


def conv_act(model: nn.Module) -> Iterator[None]:
    with swapped_child(model.decoder, "conv_act", nn.GELU()):
        yield


@contextmanager
def swapped_child(owner: nn.Module, name: str, child: nn.Module) -> Iterator[None]:
    before = owner._modules[name]
    setattr(owner, name, child)
    yield
    setattr(owner, name, before)


def eps(model: nn.Module) -> Iterator[None]:
    with swapped(model.decoder.conv_norm_out, "eps", 0.5):
        yield


def num_groups(model: nn.Module) -> Iterator[None]:
    with swapped(model.decoder.conv_norm_out, "num_groups", 1):
        yield


def output_scale_factor(model: nn.Module) -> Iterator[None]:
    with swapped(model.decoder.mid_block.resnets[0], "output_scale_factor", 2.0):
        yield


def forward_hook(model: nn.Module) -> Iterator[None]:
    handle = model.decoder.conv_in.register_forward_hook(lambda part, args, out: out * 2)
    yield
    handle.remove()


def forward_hook_with_kwargs(model: nn.Module) -> Iterator[None]:
    handle = model.decoder.register_forward_hook(lambda part, args, kwargs, out: out * 2, with_kwargs=True)
    yield
    handle.remove()


def pre_hook(model: nn.Module) -> Iterator[None]:
    handle = model.decoder.register_forward_pre_hook(lambda part, args: (args[0] * 2, *args[1:]))
    yield
    handle.remove()


def decoder_forward(model: nn.Module) -> Iterator[None]:
    with swapped(model.decoder, "forward", louder(model.decoder.forward)):
        yield


def vae_decode(model: nn.Module) -> Iterator[None]:
    with swapped(model, "_decode", MethodType(lambda self, z, return_dict=True: (z * 2,), model)):
        yield


def attention_processor(model: nn.Module) -> Iterator[None]:
    from diffusers.models.attention_processor import AttnProcessor

    attention = model.decoder.mid_block.attentions[0]
    before = attention.processor
    attention.set_processor(AttnProcessor())
    yield
    attention.set_processor(before)


def inside_a_processor(model: nn.Module) -> Iterator[None]:
    with swapped(model.decoder.mid_block.attentions[0].processor, "gain", 2.0):
        yield


def nested_container(model: nn.Module) -> Iterator[None]:
    model._cached_conv_counts = {"decoder": [1, {2}]} if not hasattr(model, "_cached_conv_counts") else None
    yield
    del model._cached_conv_counts


def weight_norm(model: nn.Module) -> Iterator[None]:
    torch.nn.utils.parametrizations.weight_norm(model.decoder.conv_in)
    yield
    torch.nn.utils.parametrize.remove_parametrizations(model.decoder.conv_in, "weight")


def old_weight_norm(model: nn.Module) -> Iterator[None]:
    torch.nn.utils.weight_norm(model.decoder.conv_in)
    yield
    torch.nn.utils.remove_weight_norm(model.decoder.conv_in)


def compiled(model: nn.Module) -> Iterator[None]:
    before = model.decoder
    model.decoder = torch.compile(before, backend="eager")
    yield
    model.decoder = before


def type_of_weights(model: nn.Module) -> Iterator[None]:
    model.to(torch.float64)
    yield
    model.to(torch.float32)


def layer_removed(model: nn.Module) -> Iterator[None]:
    before = model.quant_conv
    model.quant_conv = None
    yield
    model.quant_conv = before


def order_of_layers(model: nn.Module) -> Iterator[None]:
    layers = model.decoder.up_blocks._modules
    assert len(layers) > 1
    layers["0"] = layers.pop("0")
    yield
    for name in sorted(layers):
        layers[name] = layers.pop(name)


def class_of_a_layer(model: nn.Module) -> Iterator[None]:
    class Quieter(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 2

    model.decoder.conv_in.__class__ = Quieter
    yield
    model.decoder.conv_in.__class__ = nn.Conv2d


CHANGES: list[Change] = [
    *(padding_mode, conv_act, eps, num_groups, output_scale_factor, forward_hook, forward_hook_with_kwargs, pre_hook),
    *(decoder_forward, vae_decode, attention_processor, inside_a_processor, nested_container, weight_norm, compiled),
    *(type_of_weights, layer_removed, order_of_layers, class_of_a_layer),
    pytest.param(old_weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_told(change: Change) -> None:
    model = TINY["AutoencoderKL"].build()
    first = identity_of(model)
    assert first.portable, first.why
    assert first.unchanged()
    running = contextmanager(change)(model)
    with running:
        assert not first.unchanged()
        changed = identity_of(model)
        assert changed.digest != first.digest
        assert changed.portable, changed.why
        assert changed.unchanged()
        assert identity_of(model).digest == changed.digest
    assert not changed.unchanged()
    assert identity_of(model).digest == first.digest
