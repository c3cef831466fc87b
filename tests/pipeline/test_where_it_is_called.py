"""What is switched on around a call, the model's own mode, and inputs that are not for the model."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_vaes import TINY, relative_l2
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError

LATENTS = torch.randn(1, 4, 6, 5, generator=torch.Generator().manual_seed(1))


def wanted(model: nn.Module) -> torch.Tensor:
    return wanted_of(model, LATENTS)


def wanted_of(model: nn.Module, z: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = copy.deepcopy(model).double().decode(z.double()).sample
    return found


def test_default_device() -> None:
    """The caller's default device is not where a CPU's sums of weights are."""
    model = TINY["AutoencoderKL"].build()
    vae = TiledVAE(model, "cpu")
    with torch.device("meta"):
        first, second = vae.decode(LATENTS).sample, vae.decode(LATENTS).sample
    assert relative_l2(first, wanted(model)) < 1e-5
    assert torch.equal(first, second)


class Asks(nn.Module):
    """Computes by a setting of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.conv(z) * torch.finfo(torch.get_default_dtype()).bits

    encode = decode


def test_the_default_type_changes_between_calls() -> None:
    model = Asks().eval()
    vae = TiledVAE(model, "cpu", strip=2)
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            try:
                assert relative_l2(vae.decode(LATENTS), model.decode(LATENTS)) < 1e-5
            finally:
                torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_autocast_around_a_call(dtype: torch.dtype) -> None:
    """A model of float32 computes in float32, and takes what pipelines give it there; no call before sees another."""
    model = TINY["AutoencoderKL"].build()
    vae, z = TiledVAE(model, "cpu", strip=2), LATENTS.to(dtype)
    before = vae.decode(LATENTS).sample
    with torch.autocast("cpu", torch.bfloat16):
        own, found = model.decode(z).sample.detach(), vae.decode(z).sample
        assert torch.equal(vae.decode(LATENTS).sample, before)
    want = wanted_of(model, z)
    assert found.dtype == dtype
    assert relative_l2(found, want) < {torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 5e-4}[dtype]
    assert relative_l2(found, want) < relative_l2(own, want)
    assert torch.equal(vae.decode(LATENTS).sample, before)
    if dtype != torch.float32:
        with pytest.raises(UsageError, match="the VAE is float32"):
            vae.decode(z)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(UsageError, match="the VAE is float32"):
        vae.decode(z.double())


def test_fake_tensors() -> None:
    """They are refused, and later calls have none of them."""
    model = TINY["AutoencoderKL"].build()
    vae = TiledVAE(model, "cpu", strip=2)
    for _ in range(2):
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(UsageError, match="FakeTensorMode"):
            vae.decode(LATENTS)
        assert relative_l2(vae.decode(LATENTS).sample, wanted(model)) < 1e-5


class Ramps(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (F.relu if func is F.silu else func)(*args, **(kwargs or {}))


def test_a_mode_that_changes_functions() -> None:
    """Refused: what is captured there would serve later calls. PyTorch's own are no such modes."""
    model = TINY["AutoencoderKL"].build()
    vae = TiledVAE(model, "cpu", strip=2)
    for _ in range(2):
        with Ramps(), pytest.raises(UsageError, match="under Ramps"):
            vae.decode(LATENTS)
        with Ramps(), pytest.raises(UsageError, match="under Ramps"):
            vae.plan(tuple(LATENTS.shape), "decode")
        with torch.device("cpu"):
            assert relative_l2(vae.decode(LATENTS).sample, wanted(model)) < 1e-5


class Shifts(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found + 0.25 if func in (torch.ops.aten.exp.default, torch.ops.aten.mul.Tensor) else found


class Gains(nn.Module):
    """Its kernel is made of weights, once for as long as those stay."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kernel, self.gain = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(4, 1, 1, 1))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.kernel * self.gain.exp(), padding=1)

    decode = encode


@torch.no_grad()
def test_what_is_made_of_weights_under_a_callers_mode() -> None:
    """The kernel that the mode had made was kept for later calls."""
    model, x = Gains().eval(), torch.randn(1, 3, 9, 6)
    tiled, want = TiledVAE(model, "cpu", strip=2), copy.deepcopy(model).double().encode(x.double())
    with Shifts():
        tiled.encode(x)
    assert relative_l2(tiled.encode(x), want) < 1e-5


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors() -> None:
    with pytest.raises(UsageError, match="nested"):
        TiledVAE(TINY["AutoencoderKL"].build()).decode(torch.nested.nested_tensor([LATENTS[0], LATENTS[0]]))


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(16), nn.Sequential(nn.GroupNorm(4, 16), nn.Dropout(0.5))])
def test_layers_that_learn(layer: nn.Module) -> None:
    """Refused in training, whenever that begins; the model's own numbers in evaluation."""
    model = TINY["AutoencoderKL"].build()
    model.decoder.conv_norm_out = layer
    vae = TiledVAE(model, "cpu")
    for _ in range(2):
        model.train()
        with pytest.raises(UsageError, match=r"'decoder\.conv_norm_out.*eval\(\)"):
            vae.decode(LATENTS)
        model.eval()
        assert relative_l2(vae.decode(LATENTS).sample, wanted(model)) < 1e-5


def test_training_that_changes_nothing() -> None:
    model = TINY["AutoencoderKL"].build().train()
    assert relative_l2(TiledVAE(model, "cpu").decode(LATENTS).sample, wanted(model)) < 1e-5
    assert model.training


@pytest.mark.parametrize(
    ("side", "shape", "said"),
    [
        ("decode", (1, 5, 6, 5), "4 latent channels, not 5"),
        ("encode", (1, 4, 16, 16), "3 channels, not 4"),
        ("decode", (1, 4, 2, 6, 5), "takes pictures"),
    ],
)
@pytest.mark.long
def test_inputs_of_other_models(side: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        getattr(TiledVAE(TINY["AutoencoderKL"].build(), "cpu"), side)(torch.zeros(shape))


def test_attributes_are_set_where_they_belong() -> None:
    """An attribute of the model's that is set through the wrapper changes what both compute."""

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gain = nn.Conv2d(3, 3, 3, padding=1), 1.0

        def encode(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.conv(x) * self.gain,)

        decode = encode

    model = Gain()
    vae, x = TiledVAE(model, "cpu"), torch.randn(1, 3, 8, 8)
    for gain in (1.0, 2.0, -3.0):
        vae.gain = gain
        assert model.gain == vae.gain == gain
        with torch.no_grad():
            assert relative_l2(vae.decode(x)[0], model.decode(x)[0]) < 1e-5
    vae.conv = nn.Conv2d(3, 3, 1)
    assert model.conv is vae.conv
    vae.note = "mine"
    assert not hasattr(model, "note")
    for mode in (False, True):
        vae.train(mode)
        assert {model.training, vae.training, model.conv.training} == {mode}


@pytest.mark.long
def test_errors_can_be_printed() -> None:
    """With the variables of all frames, as debuggers and pytest do: each tensor has the memory that it says."""
    with pytest.raises(UsageError) as caught:
        TiledVAE(TINY["AutoencoderKL"].build(), "cpu").decode(torch.zeros(1, 5, 6, 5))
    error: BaseException | None = caught.value
    seen: list[torch.Tensor] = []
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for value in frame.f_locals.values():
                seen += [t for t in (value if isinstance(value, list | tuple) else [value]) if type(t) is torch.Tensor]
        error = error.__cause__ or error.__context__
    assert seen
    for tensor in seen:
        assert tensor.is_meta or tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
