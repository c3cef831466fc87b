"""Changes that people make to a VAE after its first call, each of which changes its numbers (or must not)."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["CHANGES", "LASTING", "lora", "patched"]

Change = Callable[[Any], object]


def _convs(model: nn.Module) -> list[nn.Conv2d]:
    return [m for m in model.modules() if isinstance(m, nn.Conv2d)]


def circular(model: Any) -> None:
    for conv in _convs(model):
        if conv.kernel_size != (1, 1):
            conv.padding_mode = "circular"


def reflect(model: Any) -> None:
    for conv in _convs(model):
        if conv.kernel_size != (1, 1):
            conv.padding_mode = "reflect"


def other_padding(model: Any) -> None:
    """``padding`` is read by no convolution with a mode but zeros; of zeros it is."""
    for conv in _convs(model):
        if conv.kernel_size == (3, 3) and conv.stride == (1, 1):
            conv.dilation, conv.padding = (2, 2), (2, 2)


def activation(model: Any) -> None:
    model.decoder.conv_act = nn.GELU()
    model.encoder.conv_act = nn.GELU()


def epsilon(model: Any) -> None:
    for part in model.modules():
        if isinstance(part, nn.GroupNorm):
            part.eps = 0.5


def groups(model: Any) -> None:
    for part in model.modules():
        if isinstance(part, nn.GroupNorm):
            part.num_groups = 2


def scale_factor(model: Any) -> None:
    for part in model.modules():
        if hasattr(part, "output_scale_factor"):
            part.output_scale_factor = 1.7


@torch.no_grad()
def data_copied(model: Any) -> None:
    for weight in model.parameters():
        weight.data.copy_(weight * 1.01)


@torch.no_grad()
def data_flipped(model: Any) -> None:
    for weight in model.parameters():
        weight.data.copy_(weight.flip(0))


def numpy_written(model: Any) -> None:
    for weight in model.parameters():
        weight.detach().numpy()[...] *= 1.01


@torch.no_grad()
def written(model: Any) -> None:
    for weight in model.parameters():
        weight.mul_(1.01)


def hook(model: Any) -> None:
    for side in (model.encoder, model.decoder):
        side.conv_out.register_forward_hook(lambda _module, _args, out: out * 1.5)


def pre_hook(model: Any) -> None:
    for side in (model.encoder, model.decoder):
        side.conv_out.register_forward_pre_hook(lambda _module, args: (args[0] * 1.5, *args[1:]))


def forward_patched(model: Any) -> None:
    for side in (model.encoder, model.decoder):
        before = side.forward
        side.forward = lambda *args, before=before, **kwargs: before(*args, **kwargs) * 1.5


def method_patched(model: Any) -> None:
    before = model.decode

    def decode(self: Any, z: Tensor, return_dict: bool = True) -> Any:
        found = before(z * 1.5, return_dict=True)
        return found if return_dict else (found.sample,)

    model.decode = types.MethodType(decode, model)
    model.quant_conv.weight.data.mul_(1.5)  # for encode


def processor(model: Any) -> None:
    class Halved:
        """Attention that is half of what it was."""

        def __call__(self, attn: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            from diffusers.models.attention_processor import AttnProcessor

            return AttnProcessor()(attn, hidden_states, *args, **kwargs) * 0.5

    model.set_attn_processor(Halved())


def weight_normed(model: Any) -> None:
    for conv in (model.decoder.conv_in, model.encoder.conv_in):
        nn.utils.parametrizations.weight_norm(conv)
        conv.parametrizations.weight.original0.data.mul_(1.5)


def weight_normed_of_old(model: Any) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for conv in (model.decoder.conv_in, model.encoder.conv_in):
            nn.utils.weight_norm(conv)
            conv.weight_g.data.mul_(1.5)


def loaded(model: Any) -> None:
    model.load_state_dict({k: v * 1.01 for k, v in model.state_dict().items()})


def layer_exchanged(model: Any) -> None:
    for side in (model.encoder, model.decoder):
        side.conv_norm_out = nn.Identity()


def tiling(model: Any) -> None:
    model.enable_tiling()


def there_and_back(model: Any) -> None:
    model.to(torch.bfloat16)
    model.to(torch.float32)


CHANGES: dict[str, Change] = {
    f.__name__: f
    for f in (
        *(circular, reflect, other_padding, activation, epsilon, groups, scale_factor, data_copied, data_flipped),
        *(numpy_written, written, hook, pre_hook, forward_patched, method_patched, processor, weight_normed),
        *(weight_normed_of_old, loaded, layer_exchanged, tiling, there_and_back),
    )
}
"""Of an AutoencoderKL, by name."""
LASTING = ("circular", "reflect", "other_padding", "activation", "epsilon", "groups", "scale_factor", "forward_patched")
"""Those that another process can make in the same way, and that change no weight."""


@contextmanager
def patched(place: Any, name: str, function: Any) -> Iterator[None]:
    """A class or module with another function for a while."""
    before = vars(place)[name]
    setattr(place, name, function)
    try:
        yield
    finally:
        setattr(place, name, before)


def lora(model: Any, alpha: int = 8) -> Any:
    """peft's own low-rank adapters on attention and convolutions, with values that show."""
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=4, lora_alpha=alpha, target_modules=["to_q", "to_k", "to_v", "conv1"], init_lora_weights=False
    )
    return inject_adapter_in_model(config, model)


def silu_again(x: Tensor, inplace: bool = False) -> Tensor:
    """Another activation in the place of SiLU."""
    return F.gelu(x)
