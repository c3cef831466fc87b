"""What a model's ``encode`` or ``decode`` returns, taken apart into tensors and put together again.

The engine deals in tensors; the caller expects the wrapped class's own return type (an output dataclass, a posterior
object, a tuple). ``flatten`` finds the tensors in such a value and describes the rest as a ``Spec``, which can be kept
beside a captured graph and rebuilds the value from new tensors.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tvae.kernels import native
from tvae.pipeline.errors import UsageError

__all__ = ["Posterior", "Spec", "flatten", "importable", "posterior_of", "rebuild"]

Spec = dict[str, Any]
"""JSON-able description of a returned value; tensors are ``{"tensor": index}``."""

_LOGVAR_RANGE = (-30.0, 20.0)
"""diffusers clamps log variances to this range (DiagonalGaussianDistribution)."""


@dataclasses.dataclass
class Posterior:
    """Diagonal Gaussian over latents. ``logvar`` is None where the encoder gives a point (Tiny, DC, VQ)."""

    mean: Tensor
    logvar: Tensor | None

    @classmethod
    def from_moments(cls, moments: Tensor) -> Posterior:
        """From mean and log variance side by side in dimension 1, the latter clamped as diffusers does."""
        mean, logvar = moments.chunk(2, dim=1)
        return cls(mean, logvar.clamp(*_LOGVAR_RANGE))

    @property
    def std(self) -> Tensor:
        """Standard deviation; zero for a point."""
        return torch.zeros_like(self.mean) if self.logvar is None else torch.exp(0.5 * self.logvar)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """mean + std·noise; the noise is drawn on the generator's device, so a CPU seed gives one result everywhere."""
        if self.logvar is None:
            return self.mean
        device = generator.device if generator is not None else self.mean.device
        noise = torch.randn(self.mean.shape, generator=generator, device=device, dtype=self.mean.dtype)
        return native.sample(self.mean, self.std, noise.to(self.mean.device))

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean


def flatten(value: Any) -> tuple[list[Tensor], Spec]:
    """The tensors of a returned value, in order, and how to build such a value from them. Raises UsageError."""
    tensors: list[Tensor] = []

    def walk(part: Any) -> Spec:
        if isinstance(part, Tensor):
            tensors.append(part)
            return {"tensor": len(tensors) - 1}
        if part is None or isinstance(part, (bool, int, float, str)):
            return {"constant": part}
        if type(part) in (tuple, list):
            return {"sequence": type(part).__name__, "items": [walk(p) for p in part]}
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = {f.name: walk(getattr(part, f.name)) for f in dataclasses.fields(part)}
            return {"class": _path_of(type(part)), "fields": fields}
        if isinstance(getattr(part, "parameters", None), Tensor):  # diffusers' distributions
            return {"class": _path_of(type(part)), "distribution": walk(part.parameters)}
        if isinstance(getattr(part, "mean", None), Tensor) and hasattr(part, "sample"):
            return {"posterior": [walk(part.mean), walk(getattr(part, "logvar", None))]}
        raise UsageError(f"the model returns a {type(part).__name__}, of which tvae knows no tensors")

    spec = walk(value)
    if not tensors:
        raise UsageError("the model returns no tensor")
    return tensors, spec


def rebuild(spec: Spec, tensors: Sequence[Tensor]) -> Any:
    """A value like the one ``flatten`` took apart, from new tensors."""
    if "tensor" in spec:
        return tensors[spec["tensor"]]
    if "constant" in spec:
        return spec["constant"]
    if "sequence" in spec:
        items = [rebuild(s, tensors) for s in spec["items"]]
        return tuple(items) if spec["sequence"] == "tuple" else items
    if "fields" in spec:
        return _class_at(spec["class"])(**{k: rebuild(s, tensors) for k, s in spec["fields"].items()})
    if "distribution" in spec:
        return _class_at(spec["class"])(rebuild(spec["distribution"], tensors))
    mean, logvar = (rebuild(s, tensors) for s in spec["posterior"])
    return Posterior(mean, logvar)


def posterior_of(spec: Spec, tensors: Sequence[Tensor]) -> Posterior:
    """The posterior in what ``encode`` returned, without importing the classes it was made of."""
    found = _find_posterior(spec)
    if found is None:
        return Posterior(tensors[0], None)
    if "posterior" in found:
        mean, logvar = (rebuild(s, tensors) for s in found["posterior"])
        return Posterior(mean, logvar)
    moments: Tensor = rebuild(found["distribution"], tensors)
    return Posterior.from_moments(moments) if "Gaussian" in found["class"] else Posterior(moments, None)


def _find_posterior(spec: Any) -> Spec | None:
    if isinstance(spec, Mapping):
        if "distribution" in spec or "posterior" in spec:
            return dict(spec)
        parts: list[Any] = list(spec.values())
    else:
        parts = list(spec) if isinstance(spec, list) else []
    return next((found for found in map(_find_posterior, parts) if found), None)


def importable(spec: Any) -> bool:
    """Whether another process can find every class the value was made of (a class inside a function cannot be)."""
    if isinstance(spec, Mapping):
        return "<locals>" not in str(spec.get("class", "")) and all(importable(s) for s in spec.values())
    return all(map(importable, spec)) if isinstance(spec, list) else True


def _path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class_at(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
