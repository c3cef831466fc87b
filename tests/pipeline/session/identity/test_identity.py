"""What changes a model's numbers changes its digest and is seen; undone, the digest is the first again."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.identity import library
from tvae.pipeline.session.identity import module_identity as identifying
from tvae.pipeline.session.identity.module_identity import identity_of

SMALL = TINY["AutoencoderKL"]
Change = Callable[[nn.Module], Iterator[None]]


def parts(model: nn.Module, kind: type) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, kind)]


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object, class or module set, and put back as it was: removed where there was none."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def louder(function: Callable[..., Any], factor: float = 1.5) -> Callable[..., Any]:
    @functools.wraps(function)
    def more(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * factor

    return more


# -- the changes -------------------------------------------------------------------------------------------------------
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


def global_hook(model: nn.Module) -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda part, args, out: None)
    yield
    handle.remove()


def decoder_forward(model: nn.Module) -> Iterator[None]:
    with swapped(model.decoder, "forward", louder(model.decoder.forward)):
        yield


def vae_decode(model: nn.Module) -> Iterator[None]:
    with swapped(model, "_decode", MethodType(lambda self, z, return_dict=True: (z * 2,), model)):
        yield


def class_forward(model: nn.Module) -> Iterator[None]:
    from diffusers.models.resnet import ResnetBlock2D

    with swapped(ResnetBlock2D, "forward", louder(ResnetBlock2D.forward)):
        yield


def class_attribute(model: nn.Module) -> Iterator[None]:
    with swapped(type(model), "_decode", louder(type(model)._decode)):
        yield


def class_call_added(model: nn.Module) -> Iterator[None]:
    from diffusers.models.resnet import ResnetBlock2D

    with swapped(ResnetBlock2D, "__call__", louder(nn.Module.__call__)):
        yield


def torch_layer_forward(model: nn.Module) -> Iterator[None]:
    with swapped(nn.Conv2d, "_conv_forward", louder(nn.Conv2d._conv_forward)):
        yield


def torch_function(model: nn.Module) -> Iterator[None]:
    with swapped(nn.functional, "interpolate", louder(nn.functional.interpolate)):
        yield


def torch_function_of_a_layer(model: nn.Module) -> Iterator[None]:
    with swapped(nn.functional, "group_norm", louder(nn.functional.group_norm)):
        yield


def torch_function_for_another(model: nn.Module) -> Iterator[None]:
    with swapped(nn.functional, "interpolate", nn.functional.grid_sample):
        yield


def tensor_method(model: nn.Module) -> Iterator[None]:
    with swapped(Tensor, "chunk", louder(Tensor.chunk)):
        yield


def helper_in_a_module(model: nn.Module) -> Iterator[None]:
    from diffusers.models import downsampling, upsampling

    assert downsampling.F is nn.functional
    with swapped(upsampling, "is_torch_version", lambda operation, version: False):
        yield


def name_in_a_module(model: nn.Module) -> Iterator[None]:
    from diffusers.models.autoencoders import autoencoder_kl

    with swapped(autoencoder_kl, "DiagonalGaussianDistribution", lambda moments: moments):
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
    *(global_hook, decoder_forward, vae_decode, class_forward, class_attribute, class_call_added, torch_layer_forward),
    *(torch_function, torch_function_of_a_layer, torch_function_for_another, tensor_method, helper_in_a_module),
    *(name_in_a_module, attention_processor, inside_a_processor, nested_container, weight_norm, compiled),
    *(type_of_weights, layer_removed, order_of_layers, class_of_a_layer),
    pytest.param(old_weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_told(change: Change) -> None:
    model = SMALL.build()
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
    model.train()
    assert identity_of(model).digest == first.digest
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


def test_what_functions_hold_is_looked_at() -> None:
    factor = [2.0]

    def hook(part: nn.Module, args: Any, out: Tensor, *, more: float = 1.0, many: tuple[float, ...] = (1.0,)) -> Tensor:
        return out * factor[0] * more * sum(many)

    model = SMALL.build()
    model.decoder.register_forward_hook(hook)
    seen = [identity_of(model)]
    assert seen[0].portable

    def changed() -> None:
        assert not seen[-1].unchanged()
        seen.append(identity_of(model))
        assert seen[-1].unchanged()

    factor[0] = 3.0
    changed()
    factor = [4.0]
    changed()
    hook.__kwdefaults__["more"] = 2.0
    changed()
    hook.__kwdefaults__ = {"more": 1.0, "many": (2.0,)}
    changed()
    hook.__code__ = (lambda part, args, out, *, more=1.0, many=(1.0,): factor).__code__
    changed()
    assert len({i.digest for i in seen}) == len(seen)


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


@pytest.mark.parametrize("depth", [1, 40])
def test_weights_of_a_module_outside_the_tree_are_not_portable(depth: int) -> None:
    aside, other = (nn.Sequential(*[nn.Linear(2, 2) for _ in range(depth)]) for _ in range(2))

    def hooked(outside: nn.Module) -> nn.Module:
        model = SMALL.build()
        model.decoder.register_forward_hook(lambda part, args, out: outside(out))
        return model

    first = identity_of(hooked(aside))
    assert not first.portable
    assert "Sequential that is no part of the model" in first.why
    assert first.unchanged()
    assert identity_of(hooked(other)).digest != first.digest
    with torch.no_grad():
        aside[0].weight.add_(1)
    assert first.unchanged() == (depth > 32)  # a large one is not looked into


def test_accelerates_way_of_moving_a_model_is_no_change() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = SMALL.build()
    first = identity_of(model)
    hooks.add_hook_to_module(model, hooks.CpuOffload("cpu"))
    assert first.unchanged()
    assert identity_of(model).digest == first.digest
    hooks.add_hook_to_module(model, hooks.ModelHook(), append=True)  # may do anything
    assert not first.unchanged()
    assert identity_of(model).digest != first.digest


def test_a_forward_patched_under_accelerates_is_seen() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model = SMALL.build()
    first = identity_of(model)
    model.forward = louder(model.forward)
    hooks.add_hook_to_module(model, hooks.CpuOffload("cpu"))
    assert not first.unchanged()
    assert identity_of(model).digest != first.digest


@pytest.mark.parametrize("name", ["torch", "python", "diffusers", "numpy"])
def test_versions_are_in_the_digest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Conv2d(1, 1, 1)
    first, versions = identity_of(model).digest, library.versions()
    assert versions["torch"] == torch.__version__
    monkeypatch.setattr(identifying.library, "versions", lambda: {**versions, name: "0"})
    assert identity_of(model).digest != first


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


class ByName(nn.Module):
    """Calls a method whose name is a string."""

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, "helper")(x)  # noqa: B009

    def helper(self, x: Tensor) -> Tensor:
        return x


def test_a_method_that_is_called_by_a_string_is_watched() -> None:
    model = ByName()
    first = identity_of(model)
    with swapped(ByName, "helper", louder(ByName.helper)):
        assert not first.unchanged()
        assert identity_of(model).digest != first.digest


def test_a_function_without_python_code_put_for_another_is_seen() -> None:
    model = nn.Linear(2, 2)
    first = identity_of(model)
    with swapped(nn.functional, "linear", nn.functional.bilinear):
        assert not first.unchanged()
        assert identity_of(model).digest != first.digest


def test_installed_packages_are_no_part_of_the_standard_library() -> None:
    folder = sysconfig.get_paths()["stdlib"]
    assert library.library_file(f"{folder}/json/decoder.py")
    assert library.library_file(torch.__file__)
    assert not library.library_file(f"{folder}/site-packages/somebodys/vae.py")
    assert not library.library_file("/home/somebody/vae.py")
