"""What a TiledVAE's calls are given besides a picture: arguments of the model, conditioning, noise, and bad inputs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tiny_vaes import TINY, TinyVAE, relative_l2
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError, UsageError

KL = TINY["AutoencoderKL"]


@pytest.mark.long
def test_extra_arguments_pass_through() -> None:
    tiny = TINY["AutoencoderKLTemporalDecoder"]
    model: Any = tiny.build()
    tiled = TiledVAE(model, strip=4)
    z = tiny.input("decode", 7, 5)
    with torch.no_grad():
        assert relative_l2(tiled.decode(z, 3).sample, model.decode(z, 3).sample) < 1e-5
        assert isinstance(tiled.decode(z, 3, False), tuple)
        assert relative_l2(tiled.decode(z, num_frames=1).sample, model.decode(z, num_frames=1).sample) < 1e-5
    with pytest.raises(TypeError, match="frames"):
        tiled.decode(z, frames=3)


class Wrapped(nn.Module):
    """Hides the names of its arguments, as diffusers' decorator for accelerate does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def encode(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._encode(*args, **kwargs)

    def _encode(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.conv(x) * scale

    decode = encode


def test_arguments_whose_names_a_wrapper_hides_are_given_by_name() -> None:
    model = Wrapped()
    tiled = TiledVAE(model, strip=4)
    x = torch.randn(1, 3, 9, 7)
    with torch.no_grad():
        assert relative_l2(tiled.encode(x, scale=3.0), model.encode(x, scale=3.0)) < 1e-6
    with pytest.raises(UsageError, match="by name"):
        tiled.encode(x, 3.0)


def _conditioned_ltx() -> tuple[Any, TinyVAE]:
    tiny = TINY["AutoencoderKLLTXVideo"]
    config = {**tiny.config, "timestep_conditioning": True, "decoder_inject_noise": (True,) * 5}
    return TinyVAE(tiny.class_name, config, tiny.latent, tiny.scale).build(), tiny


@pytest.mark.long
def test_conditioning_tensors_and_injected_noise() -> None:
    """LTX: a timestep per sample, and noise that the decoder adds; it is drawn whole, as the untiled model draws it."""
    model, tiny = _conditioned_ltx()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "per_channel_scale" in name:
                weight.fill_(0.5)
    z, temb = tiny.input("decode", 6, 4), torch.tensor([0.05])
    with torch.no_grad():
        torch.manual_seed(11)
        theirs = model.decode(z, temb).sample
        torch.manual_seed(12)
        other = model.decode(z, temb).sample
    assert relative_l2(other, theirs) > 1e-3  # the noise matters
    torch.manual_seed(11)
    assert relative_l2(TiledVAE(model, strip=2).decode(z, temb=temb).sample, theirs) < 1e-5


def test_a_generator_seeds_injected_noise() -> None:
    class Seeded(nn.Module):
        """A model whose decode takes a generator, as some do."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

        def encode(self, x: Tensor) -> Tensor:
            return x

        def decode(self, z: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
            h = self.first(z)
            return self.last(h + scale * torch.randn(h.shape, generator=generator, dtype=h.dtype))

    model = Seeded()
    tiled = TiledVAE(model, strip=2)
    z, scale = KL.input("decode", 6, 4), torch.tensor([0.5])
    first, again, other = (tiled.decode(z, scale, generator=torch.Generator().manual_seed(s)) for s in (11, 11, 12))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with torch.no_grad():
        assert relative_l2(first, model.decode(z, scale, torch.Generator().manual_seed(11))) < 1e-5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KL.input("decode", 9, 6).requires_grad_(), "gradients"),
        (lambda: KL.input("decode", 9, 6).double(), "float64"),
        (lambda: torch.zeros(4, 9), r"\[4, 9\]"),
        (lambda: torch.zeros(1, 4, 0, 6), "no size of 0"),
        (lambda: None, "takes a tensor, not NoneType"),
        (lambda: [[0.0]], "takes a tensor, not list"),
        (lambda: np.zeros((1, 4, 9, 6), np.float32), "takes a tensor, not ndarray"),
        (lambda: torch.zeros(1, 4, 9, 6).to_sparse(), r"a dense tensor; this one is torch\.sparse_coo"),
    ],
)
def test_bad_inputs_are_refused(tiled: Any, make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tiled.decode(make())


def test_without_gradients_is_enough_for_a_parameter_input(tiled: Any) -> None:
    z = KL.input("decode", 9, 6).requires_grad_()
    with torch.no_grad():
        assert not tiled.decode(z).sample.requires_grad


@pytest.mark.parametrize(
    ("shape", "side", "words"),
    [
        ((1, 4, 9, 6), "dec", "plan\\(\\) is of one of encode, decode, not 'dec'"),
        ((1, 4, 0, 6), "decode", r"no size below 1, not \[1, 4, 0, 6\]"),
        ((1, 4, -9, 6), "decode", "no size below 1"),
        ((4, 9, 6), "decode", "no size below 1"),
        ((1, 4, 2**31, 2**31), "decode", "no tensor is as large"),
        ((1, 4, 2**70, 1), "decode", "no tensor is as large"),
        ((1, 4, 9.0, 6), "decode", "takes the shape of an input, such as"),
        ("1,4,9,6", "decode", "takes the shape of an input"),
        (None, "encode", "takes the shape of an input"),
    ],
    ids=str,
)
def test_what_is_no_shape_has_no_plan(tiled: Any, shape: Any, side: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tiled.plan(shape, side)


@pytest.mark.long
@pytest.mark.parametrize(
    ("side", "shape"),
    [
        pytest.param("encode", (1, 3, 1 << 20, 1 << 20), marks=pytest.mark.slow),
        ("decode", (1, 4, 1 << 18, 1 << 18)),
    ],
)
def test_a_plan_takes_no_memory_for_its_input(side: Any, shape: tuple[int, ...]) -> None:
    """Not even where it is the first to look at the model: these take terabytes."""
    with pytest.raises(PlanError, match="the smallest that works is"):
        TiledVAE(KL.build(), vram="1GiB").plan(shape, side)


@pytest.mark.parametrize("scripted", [torch.jit.script, lambda part: torch.jit.trace(part, torch.zeros(1, 4, 8, 8))])
def test_torchscript_is_refused(scripted: Any) -> None:
    model = KL.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls it old
        model.post_quant_conv = scripted(nn.Conv2d(4, 4, 1))
    with pytest.raises(UsageError, match="'post_quant_conv' of AutoencoderKL is TorchScript: wrap the model as it was"):
        TiledVAE(model)
