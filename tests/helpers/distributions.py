"""Distributions as the VAEs of other projects return them, most of them hard to put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "Dirac",
    "Drawing",
    "Forgotten",
    "InPlace",
    "Late",
    "Lazy",
    "Loose",
    "Named",
    "Needy",
    "OfLdm",
    "OfSgm",
    "Stored",
]


class OfLdm:
    """latent-diffusion's DiagonalGaussianDistribution."""

    def __init__(self, parameters: Tensor, deterministic: bool = False) -> None:
        self.parameters = parameters
        self.mean, self.logvar = torch.chunk(parameters, 2, dim=1)
        self.logvar = torch.clamp(self.logvar, -30.0, 20.0)
        self.deterministic = deterministic
        self.std = torch.exp(0.5 * self.logvar)
        self.var = torch.exp(self.logvar)
        if self.deterministic:
            self.var = self.std = torch.zeros_like(self.mean).to(device=self.parameters.device)

    def sample(self) -> Tensor:
        return self.mean + self.std * torch.randn(self.mean.shape).to(device=self.parameters.device)

    def kl(self, other: Any = None) -> Tensor:
        if self.deterministic:
            return torch.Tensor([0.0])
        if other is None:
            return 0.5 * torch.sum(torch.pow(self.mean, 2) + self.var - 1.0 - self.logvar, dim=[1, 2, 3])
        return 0.5 * torch.sum(
            torch.pow(self.mean - other.mean, 2) / other.var + self.var / other.var - 1.0 - self.logvar + other.logvar,
            dim=[1, 2, 3],
        )

    def nll(self, sample: Tensor, dims: tuple[int, ...] = (1, 2, 3)) -> Tensor:
        if self.deterministic:
            return torch.Tensor([0.0])
        logtwopi = np.log(2.0 * np.pi)
        return 0.5 * torch.sum(logtwopi + self.logvar + torch.pow(sample - self.mean, 2) / self.var, dim=dims)

    def mode(self) -> Tensor:
        return self.mean


class OfSgm(OfLdm):
    """generative-models' form of it: the same, below another class."""

    def __init__(self, parameters: Tensor, deterministic: bool = False) -> None:
        super().__init__(parameters, deterministic)


class Dirac:
    """generative-models' point."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def sample(self) -> Tensor:
        return self.value

    def mode(self) -> Tensor:
        return self.value


class Stored(OfLdm):
    """A scale of the mean that it keeps."""

    def __init__(self, parameters: Tensor, scale: float = 1.0, *, floor: float = -4.0) -> None:
        super().__init__(parameters)
        self.scale, self.floor = scale, floor
        self.mean = self.mean * scale
        self.logvar = self.logvar.clamp(min=floor)


class Forgotten(OfLdm):
    """A scale of the mean that it does not keep."""

    def __init__(self, parameters: Tensor, scale: float = 2.0) -> None:
        super().__init__(parameters)
        self.mean = self.mean * scale


class Lazy:
    """Holds moments and nothing else; the rest is computed when it is asked for."""

    def __init__(self, moments: Tensor) -> None:
        self.parameters = moments

    @property
    def mean(self) -> Tensor:
        return self.parameters.chunk(2, 1)[0]

    @property
    def logvar(self) -> Tensor:
        return self.parameters.chunk(2, 1)[1].clamp(-30.0, 20.0)

    def sample(self) -> Tensor:
        return self.mode() + torch.exp(0.5 * self.logvar) * torch.randn(self.mode().shape)

    def mode(self) -> Tensor:
        return self.mean


class InPlace(OfLdm):
    """Changes what it is given: made a second time, it would change it twice."""

    def __init__(self, parameters: Tensor) -> None:
        super().__init__(parameters.mul_(0.5))


class Drawing(OfLdm):
    """Draws noise when it is made."""

    def __init__(self, parameters: Tensor) -> None:
        super().__init__(parameters + 0 * torch.randn_like(parameters))


class Needy(OfLdm):
    """A constructor whose arguments cannot be told from what it holds."""

    def __init__(self, parameters: Tensor, model: Any, /, **more: Any) -> None:
        super().__init__(parameters)


class Late(OfLdm):
    """Changed after it was made."""

    def __init__(self, parameters: Tensor) -> None:
        super().__init__(parameters)


class Named(OfLdm):
    """A text that it is given under another name."""

    def __init__(self, parameters: Tensor, *, kind: str = "gaussian", **more: Any) -> None:
        super().__init__(parameters, **more)
        self.family = kind


class Loose(OfLdm):
    """Its deviation is not that of its log variance."""

    def __init__(self, parameters: Tensor) -> None:
        super().__init__(parameters)
        self.std = self.std * 2
