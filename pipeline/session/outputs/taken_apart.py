"""What a model's ``encode`` or ``decode`` returns, taken apart into tensors and put together again.

The engine deals in tensors; the caller expects the wrapped class's own return type (an output dataclass, a posterior
object, a tuple). ``flatten`` finds the tensors in such a value and describes the rest as a ``Spec``, which can be kept
beside a captured graph and rebuilds the value from new tensors: every object of its own class, with everything that it
holds. What cannot be made again is refused by name.
"""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tvae.kernels.operations.sample import sample
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.outputs.classes import (
    ClassName,
    base_of,
    blank,
    class_of,
    digest_of,
    set_state,
    state_of,
    why_refused,
)
from tvae.pipeline.session.outputs.spec import DEEPEST, PLAIN, Spec, is_resolved, nodes_of

__all__ = ["Posterior", "Spec", "flatten", "is_plain_tensor", "posterior_of", "rebuild"]

_LOGVAR_RANGE = (-30.0, 20.0)
"""diffusers clamps log variances to this range (DiagonalGaussianDistribution)."""
_BUILT_IN: dict[str | None, type] = {"list": list, "dict": dict, "OrderedDict": OrderedDict}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


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
        return sample(self.mean, self.std, noise.to(self.mean.device))

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean


def flatten(value: Any) -> tuple[list[Tensor], Spec]:
    """The tensors of a returned value, in order, and how to build such a value from them. Raises UsageError."""
    taken = _Taken()
    spec = taken.walk(value, "", 0)
    if not taken.tensors:
        raise UsageError("the model returns no tensor")
    taken.settle_sizes()
    return taken.tensors, spec


def rebuild(spec: Spec, tensors: Sequence[Tensor]) -> Any:
    """A value like the one ``flatten`` took apart, from new tensors."""
    return _Made(tensors).of(spec)


def posterior_of(spec: Spec, tensors: Sequence[Tensor]) -> Posterior:
    """The posterior in what ``encode`` returned, without the classes it was made of. Raises UsageError."""
    node = next((node for node in nodes_of(spec) if "posterior" in node), None)
    if node is None:
        return Posterior(tensors[0], None)
    found = node["posterior"]
    if found is None:
        raise UsageError(f"the model's posterior is a {node['class']}, whose mean and log variance tvae cannot tell")
    if "moments" in found:
        whole = Posterior.from_moments(tensors[found["moments"]["tensor"]])
        return Posterior(whole.mean, None) if found["point"] else whole
    logvar = found["logvar"]
    return Posterior(tensors[found["mean"]["tensor"]], None if logvar is None else tensors[logvar["tensor"]])


def is_plain_tensor(part: object) -> bool:
    """A tensor and no more: not of a class that a user derived from it, or of a layout of its own."""
    kind = type(part)
    plain = kind in (Tensor, nn.Parameter) or kind.__module__.startswith("torch._subclasses.")
    return isinstance(part, Tensor) and plain and part.layout == torch.strided and not part.is_quantized


class _Taken:
    """A value that is being taken apart."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._seen: dict[int, tuple[Any, Spec]] = {}  # with the object, or another may have its identity
        self._named = 0
        self._waiting: list[tuple[Spec, Any, str]] = []  # until all tensors are known

    def walk(self, part: Any, where: str, depth: int) -> Spec:
        """where: the attributes and items that lead here."""
        if depth > DEEPEST:
            raise self._refusal(part, where, f"it lies more than {DEEPEST} values deep")
        if isinstance(part, Tensor):
            return self._tensor(part, where)
        if type(part) in PLAIN:
            return self._later({"constant": part}, part, where)
        if isinstance(part, _SYMBOLIC):
            return self._later({}, part, where)
        if isinstance(part, torch.device):
            return self._later({"device": str(part)}, part, where)
        if isinstance(part, torch.dtype):
            return {"dtype": str(part).removeprefix("torch.")}
        if type(part) in (tuple, torch.Size):
            kind = "tuple" if type(part) is tuple else "size"
            return {"sequence": kind, "items": self._items(part, where, depth)}
        if id(part) in self._seen:
            return self._same(part)
        spec: Spec = {}
        if not isinstance(part, tuple):  # it can contain itself only through a list or an object
            self._seen[id(part)] = part, spec
        if type(part) is list:
            spec |= {"sequence": "list", "items": self._items(part, where, depth)}
        elif type(part) in (dict, OrderedDict):
            spec |= {"mapping": type(part).__name__, "items": self._pairs(part, where, depth)}
        else:
            self._object(spec, part, where, depth)
        return spec

    def settle_sizes(self) -> None:
        """What depends on the input's size, or on the device of the run, is told in terms of the tensors."""
        sizes: list[Any] = [n for t in self.tensors for n in t.shape if isinstance(n, torch.SymInt)]
        symbols = {str(symbol) for size in sizes for symbol in size.node.expr.free_symbols}
        spelled = re.compile(rf"\b({'|'.join(map(re.escape, symbols))})\b") if symbols else None
        for spec, part, where in self._waiting:
            if isinstance(part, torch.device):
                spec["device"] = None if part.type == self.tensors[0].device.type else str(part)
            elif isinstance(part, _SYMBOLIC):
                spec |= self._size(part, where)
            elif spelled and isinstance(part, str) and spelled.search(part):
                raise self._refusal(part, where, "it tells the input's size")

    def _tensor(self, part: Tensor, where: str) -> Spec:
        if not is_plain_tensor(part):
            raise self._refusal(part, where, "it is more than a tensor")
        known = (k for k, t in enumerate(self.tensors) if t is part)
        index = next(known, len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(part)
        return {"tensor": index}

    def _later(self, spec: Spec, part: Any, where: str) -> Spec:
        self._waiting.append((spec, part, where))
        return spec

    def _size(self, part: Any, where: str) -> Spec:
        """A number that was computed from the input's size: the same as the size of a tensor, or refused."""
        expr = part.node.expr
        if isinstance(part, torch.SymInt):
            if expr.is_number:
                return {"constant": int(expr)}
            for k, tensor in enumerate(self.tensors):
                for d, n in enumerate(tensor.shape):
                    if isinstance(n, torch.SymInt) and n.node.expr == expr:
                        return {"size": [k, d]}
        raise self._refusal(part, where, "it is computed from the input's size, and no tensor beside it has that size")

    def _same(self, part: Any) -> Spec:
        spec = self._seen[id(part)][1]
        if "id" not in spec:
            spec["id"], self._named = self._named, self._named + 1
        return {"same": spec["id"]}

    def _items(self, parts: Sequence[Any], where: str, depth: int) -> list[Spec]:
        return [self.walk(part, f"{where}[{at}]", depth + 1) for at, part in enumerate(parts)]

    def _pairs(self, parts: Mapping[Any, Any], where: str, depth: int) -> list[list[Any]]:
        found = []
        for key, part in parts.items():
            if type(key) not in PLAIN:
                raise self._refusal(key, f"{where}, a key", "it is no plain value")
            self._later({}, key, where)
            found.append([key, self.walk(part, f"{where}[{key!r}]", depth + 1)])
        return found

    def _object(self, spec: Spec, part: Any, where: str, depth: int) -> None:
        cls = type(part)
        why = "it is a class" if isinstance(part, type) else why_refused(cls)
        if why is not None:
            raise self._refusal(part, where, why)
        spec |= {"class": ClassName.of(cls), "digest": digest_of(cls)}
        state = {k: self.walk(v, f"{where}.{k}", depth + 1) for k, v in state_of(part).items()}
        items: list[Any] = []
        if state and isinstance(part, tuple):
            raise self._refusal(part, where, "it is a tuple with attributes")
        base: Any = base_of(cls)
        if base in (tuple, list):
            items = self._items(list(base.__iter__(part)), where, depth)
        elif base in (dict, OrderedDict):
            items = self._pairs(dict(base.items(part)), where, depth)
        spec |= {"state": state, "items": items}

    def _refusal(self, part: Any, where: str, why: str) -> UsageError:
        what = f"the model returns a {type(part).__name__}" + (f" at {where.lstrip('.')}" if where else "")
        return UsageError(f"{what}, which tvae cannot rebuild: {why}; return tensors and plain values")


class _Made:
    """A value that is being put together."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._named = tensors, dict[int, Any]()

    def of(self, spec: Spec) -> Any:
        if "tensor" in spec:
            return self._tensors[spec["tensor"]]
        if "constant" in spec:
            return spec["constant"]
        if "size" in spec:
            return self._tensors[spec["size"][0]].shape[spec["size"][1]]
        if "device" in spec:
            return self._tensors[0].device if spec["device"] is None else torch.device(spec["device"])
        if "dtype" in spec:
            own = next((t.dtype for t in self._tensors if t.is_floating_point()), torch.get_default_dtype())
            return own if spec["dtype"] is None else getattr(torch, spec["dtype"])
        if "same" in spec:
            return self._named[spec["same"]]
        if spec.get("sequence") in ("tuple", "size"):
            items = tuple(self.of(s) for s in spec["items"])
            return torch.Size(items) if spec["sequence"] == "size" else items
        return self._container(spec)

    def _container(self, spec: Spec) -> Any:
        """A container, which may contain itself: it is registered before its contents."""
        cls: Any = _class_in(spec) if "class" in spec else _BUILT_IN[spec.get("sequence", spec.get("mapping"))]
        base: Any = base_of(cls)
        if "from" in spec:
            made = cls(self.of(spec["from"]), **spec["arguments"])
        elif base is tuple:
            made = blank(cls, tuple(self.of(s) for s in spec["items"]))
        else:
            made = blank(cls)
        if "id" in spec:
            self._named[spec["id"]] = made
        if "state" in spec:
            set_state(made, {name: self.of(s) for name, s in spec["state"].items()})
        for item in () if base is tuple else spec.get("items", ()):
            if base is list:
                list.append(made, self.of(item))
            else:
                base.__setitem__(made, item[0], self.of(item[1]))
        return made


def _class_in(spec: Spec) -> type:
    """The class of an object. A name that was read from disk is looked into once."""
    name = spec["class"]
    if not isinstance(name, ClassName):
        if not is_resolved(spec):
            raise UsageError(f"the model returns a {name}, which is not what it was when its graph was captured")
        found = class_of(name)
        assert found is not None
        spec["class"] = name = ClassName.of(found)
    assert name.met is not None
    return name.met
