"""TiledVAE around models that are not diffusers', and around what it cannot run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_vaes import TINY, relative_l2
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp, UsageError


class Weightless(torch.nn.Module):
    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    decode = encode


def test_what_cannot_be_wrapped_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match="Linear"):
        TiledVAE(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="no parameters"):
        TiledVAE(Weightless())
    with pytest.raises(UsageError, match="rtx9000"):
        TiledVAE(model, preset="rtx9000")
    with pytest.raises(UsageError, match="strip"):
        TiledVAE(model, strip=0)


class Gaussian:
    def __init__(self, mean: Tensor, logvar: Tensor) -> None:
        self.mean, self.logvar = mean, logvar

    def sample(self) -> Tensor:
        return self.mean


class Foreign(nn.Module):
    """Not diffusers': its own posterior on one side, a bare tensor on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm, self.up = nn.Conv2d(3, 8, 4, 4), nn.GroupNorm(2, 8), nn.ConvTranspose2d(4, 3, 4, 4)

    def encode(self, x: Tensor) -> tuple[Gaussian]:
        mean, logvar = self.norm(self.down(x)).chunk(2, 1)
        return (Gaussian(mean, logvar),)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z)


def test_modules_that_are_not_diffusers() -> None:
    torch.manual_seed(0)
    model = Foreign()
    tiled = TiledVAE(model, strip=2)
    x = TINY["AutoencoderKL"].input("encode", 7, 5)
    ours = tiled.encode(x)[0]
    with torch.no_grad():
        theirs = model.encode(x)[0]
    assert relative_l2(ours.mean, theirs.mean) < 1e-5
    assert relative_l2(ours.logvar, theirs.logvar) < 1e-5
    assert type(ours) is Gaussian
    assert torch.equal(ours.sample(), ours.mean)
    with torch.no_grad():
        assert relative_l2(tiled.decode(ours.mean), model.decode(ours.mean)) < 1e-5


class Sorting(Foreign):
    """Holds an operation that has no rule."""

    def decode(self, z: Tensor) -> Tensor:
        return self.up(torch.sort(self.norm(torch.cat([z, z], 1)), 2)[0][:, :4] * 2)


class Gumbel(Sorting):
    """Numbers of another distribution, drawn where a map lies."""

    def decode(self, z: Tensor) -> Tensor:
        h = self.norm(torch.cat([z, z], 1))
        drawn = torch.empty_like(h, memory_format=torch.legacy_contiguous_format).exponential_()
        return self.up((h - drawn.log())[:, :4])


@torch.no_grad()
def test_numbers_without_a_rule_are_drawn_whole_in_the_order_of_the_model() -> None:
    model, z = Gumbel().eval(), TINY["AutoencoderKL"].input("decode", 9, 5)
    torch.manual_seed(0)
    want = model.decode(z)
    torch.manual_seed(0)
    assert relative_l2(TiledVAE(model, strip=2, allow_whole=True).decode(z), want) < 1e-5


def test_an_operation_without_a_rule_is_named_or_runs_whole() -> None:
    torch.manual_seed(0)
    model = Sorting()
    z = TINY["AutoencoderKL"].input("decode", 9, 5)
    with pytest.raises(UnsupportedOp, match=r"sort.*--allow-whole"):
        TiledVAE(model, strip=2).decode(z)
    with torch.no_grad():
        reference = model.decode(z)
    assert relative_l2(TiledVAE(model, strip=2, allow_whole=True).decode(z), reference) < 1e-5


class Guarded(Foreign):
    """Looks at the values before it goes on."""

    def decode(self, z: Tensor) -> Tensor:
        if torch.isnan(z).any():
            raise ValueError("not a number")
        return self.up(z)


def test_a_model_that_goes_by_values_is_told_so() -> None:
    with pytest.raises(UnsupportedOp, match=r"'Guarded' cannot be captured: .*goes by the values of a tensor"):
        TiledVAE(Guarded(), strip=2).decode(torch.zeros(1, 4, 3, 3))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr"])
def test_sparse_weights_are_refused(kind: str) -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)
            self.mix = nn.Parameter(getattr(torch.eye(4), kind)(), requires_grad=False)

        def encode(self, x: Tensor) -> Tensor:
            h = self.conv(x)
            return torch.mm(self.mix, h[0].flatten(1)).reshape(h.shape)

        decode = encode

    tiled = TiledVAE(Sparse().eval(), "cpu", strip=2)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the VAE's 'mix' is torch\.sparse_"):
            tiled.encode(torch.randn(1, 3, 8, 8))


def test_functions_of_functions_are_refused() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def encode(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda a: (a - a.mean()) / a.std())(self.conv(x))

        decode = encode

    for options in ({}, {"allow_whole": True}):
        tiled = TiledVAE(Mapped().eval(), "cpu", strip=2, **options)  # type: ignore[arg-type]
        for rows in (1, 8):
            with pytest.raises(UnsupportedOp, match=r"batch_dim' in the model itself .* as torch\.vmap does"):
                tiled.encode(torch.randn(2, 3, rows, 8))


@pytest.mark.filterwarnings("ignore:.*spectral_norm")
@pytest.mark.parametrize("place", [nn.utils.parametrizations, nn.utils], ids=["parametrised", "hook"])
def test_spectral_norms_in_training_are_refused(place: Any) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = place.spectral_norm(nn.Conv2d(3, 4, 3, padding=1))

        def encode(self, x: Tensor) -> Tensor:
            h: Tensor = self.conv(x)
            return h

        decode = encode

    tiled, x = TiledVAE(model := Normed().train(), "cpu", strip=2), torch.randn(1, 3, 8, 8)
    with pytest.raises(UsageError, match=r"is in training, .* call eval\(\)"):
        tiled.encode(x)
    model.eval()
    with torch.no_grad():
        assert relative_l2(tiled.encode(x), model.encode(x)) < 1e-5


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.part = nn.Conv2d(3, 4, 3, padding=1), nn.Sequential(nn.LazyConv2d(2, 1))

    def encode(self, x: Tensor) -> Tensor:
        return self.part(self.first(x))  # type: ignore[no-any-return]

    decode = encode


@torch.no_grad()
def test_lazy_layers() -> None:
    """Wrapped before they have their sizes, called when they do."""
    tiled, x = TiledVAE(model := Lazy().eval(), "cpu", strip=2), torch.randn(1, 3, 9, 6)
    with pytest.raises(UsageError, match=r"'part\.0\.weight' has no values yet"):
        tiled.encode(x)
    want = model.encode(x)
    assert torch.allclose(tiled.encode(x), want, atol=1e-6)
