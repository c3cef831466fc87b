"""Take a model's return value apart into tensors, and make a value like it from new tensors.

The engine deals in tensors; the caller expects the wrapped class's own return type: an output dataclass, a posterior, a
tuple. ``flatten`` finds the tensors in such a value and describes the rest as a ``Spec``, JSON that is kept beside a
captured graph::

    {"tensor": 0}                                the graph's output of this number
    {"constant": plain}                          None, a truth value, a number, a text
    {"size": [0, 2]}                             the size of an output along a dimension
    {"device": "cpu" | null}                     null: that of the run
    {"dtype": "float32" | null}                  null: that of the first output that has a floating type
    {"sequence": "tuple", "items": [...]}        also list, and size for torch.Size
    {"mapping": "dict", "items": [[key, ...]]}   also OrderedDict
    {"class": name, "state": {...}, "items": [...]}                   made without its constructor, from its state
    {"class": name, "from": {"tensor": 0}, "arguments": {...}}        made by its constructor

``{"item": key}`` in a state is an item of that dictionary, too (diffusers' ``BaseOutput``).

A posterior holds its moments and much that follows from them. While the model is traced each distribution is made a
second time by its constructor (``add_trials``). Where the graph proves that everything in the second is the same
computation, the moments alone are outputs (``settle``). ``posterior`` then says where mean and log variance are.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import inspect
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tvae.kernels.operations.sample import sample
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.same_computations import DRAWING, SameComputations

__all__ = [
    *("Posterior", "Spec", "add_trials", "check_spec", "flatten", "is_known", "posterior_of", "rebuild", "settle"),
    "storable",
]

Spec = dict[str, Any]
"""The description of a returned value, see the module's docstring."""

_log = logging.getLogger("tvae")
_LOGVAR_RANGE = (-30.0, 20.0)
"""The range to which diffusers clamps log variances (``DiagonalGaussianDistribution``)."""
_DEEPEST = 24
"""Levels of values inside one another; one that contains itself is deeper."""
_PLAIN = (type(None), bool, int, float, str)
_LEAVES = ("tensor", "constant", "size", "device", "dtype")
_BASES: tuple[type, ...] = (OrderedDict, dict, tuple, list, SimpleNamespace, object)
"""What objects of a class are underneath."""
_LOCAL_CLASSES: WeakValueDictionary[str, type] = WeakValueDictionary()
"""Classes that no module has under their name, such as those inside of functions."""


@dataclasses.dataclass
class Posterior:
    """A diagonal Gaussian over latents. ``logvar`` is None where the encoder gives a point (Tiny, DC, VQ)."""

    mean: Tensor
    logvar: Tensor | None

    @classmethod
    def from_moments(cls, moments: Tensor) -> Posterior:
        """Split mean and log variance in dimension 1, and clamp the latter as diffusers does."""
        mean, logvar = moments.chunk(2, dim=1)
        return cls(mean, logvar.clamp(*_LOGVAR_RANGE))

    @property
    def std(self) -> Tensor:
        """The standard deviation; zero for a point."""
        return torch.zeros_like(self.mean) if self.logvar is None else torch.exp(0.5 * self.logvar)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return mean + std * noise.

        The noise is drawn on the generator's device, so that a seed on the CPU gives one result everywhere.
        """
        if self.logvar is None:
            return self.mean
        device = generator.device if generator is not None else self.mean.device
        noise = torch.randn(self.mean.shape, generator=generator, device=device, dtype=self.mean.dtype)
        return sample(self.mean, self.std, noise.to(self.mean.device))

    def mode(self) -> Tensor:
        return self.mean


def flatten(value: Any) -> tuple[list[Tensor], Spec]:
    """Return the tensors of a returned value, in order, and how to build such a value from them.

    Raises UsageError for a value that cannot be made again, and names it.
    """
    flattener = _Flattener()
    spec = flattener.describe(value, "", 0)
    if not flattener.tensors:
        raise UsageError("the model returns no tensor")
    flattener.resolve_sizes()
    return flattener.tensors, spec


def rebuild(spec: Spec, tensors: Sequence[Tensor]) -> Any:
    """Return a value like the one that ``flatten`` took apart, from new tensors."""
    if "tensor" in spec:
        return tensors[spec["tensor"]]
    if "constant" in spec:
        return spec["constant"]
    if "size" in spec:
        return tensors[spec["size"][0]].shape[spec["size"][1]]
    if "device" in spec:
        return tensors[0].device if spec["device"] is None else torch.device(spec["device"])
    if "dtype" in spec:
        own = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
        return own if spec["dtype"] is None else getattr(torch, spec["dtype"])
    if "sequence" in spec:
        kinds: dict[str, Any] = {"tuple": tuple, "list": list, "size": torch.Size}
        return kinds[spec["sequence"]]([rebuild(item, tensors) for item in spec["items"]])
    if "mapping" in spec:
        kind: Any = OrderedDict if spec["mapping"] == "OrderedDict" else dict
        return kind([(key, rebuild(item, tensors)) for key, item in spec["items"]])
    return _rebuild_object(spec, tensors)


def posterior_of(spec: Spec, tensors: Sequence[Tensor]) -> Posterior:
    """Return the posterior in what ``encode`` returned, without its classes. Raises UsageError."""
    node = next((node for node in _nodes(spec) if "posterior" in node), None)
    if node is None:
        return Posterior(tensors[0], None)
    places = node["posterior"]
    if places is None:
        raise UsageError(f"the model's posterior is a {node['class']}, whose mean and log variance are unknown to tvae")
    if "moments" in places:
        whole = Posterior.from_moments(tensors[places["moments"]["tensor"]])
        return Posterior(whole.mean, None) if places["point"] else whole
    logvar = places["logvar"]
    return Posterior(tensors[places["mean"]["tensor"]], None if logvar is None else tensors[logvar["tensor"]])


def storable(spec: Spec) -> bool:
    """Return whether another process can find every class by its name."""
    return all("@" not in node["class"] for node in _nodes(spec) if "class" in node)


def is_known(spec: Spec) -> bool:
    """Return whether every class is imported already, and of a kind that may be made again. Nothing is imported.

    A constructor may be called of distributions alone, with numbers.
    """
    for node in _nodes(spec):
        cls = _class_of(node["class"]) if "class" in node else object
        if cls is None or (cls is not object and _why_refused(cls) is not None):
            return False
        if "from" in node:
            numbers = all(type(value) in (type(None), bool, int, float) for value in node["arguments"].values())
            if not numbers or not (hasattr(cls, "sample") and hasattr(cls, "mode")):
                return False
    return True


def check_spec(doc: Any, ranks: Sequence[int], depth: int = 0) -> Spec:
    """Return a description that was read from disk. Raises ValueError for anything else.

    ranks: the number of dimensions of each output of its graph.
    """
    valid = isinstance(doc, dict) and depth <= _DEEPEST
    if valid and "tensor" in doc:
        valid = type(doc["tensor"]) is int and 0 <= doc["tensor"] < len(ranks)
    elif valid and "item" in doc:
        valid = depth > 0 and isinstance(doc["item"], str)
    elif valid and "constant" in doc:
        valid = type(doc["constant"]) in _PLAIN
    elif valid and "size" in doc:
        output, dim = doc["size"]
        valid = type(output) is type(dim) is int and 0 <= output < len(ranks) and 0 <= dim < ranks[output]
    elif valid and "device" in doc:
        valid = doc["device"] is None or str(doc["device"]).partition(":")[0] in ("cpu", "cuda", "mps", "xpu", "meta")
    elif valid and "dtype" in doc:
        valid = doc["dtype"] is None or isinstance(getattr(torch, str(doc["dtype"]), None), torch.dtype)
    elif valid:
        valid = any(isinstance(doc.get(kind), str) for kind in ("sequence", "mapping", "class"))
        parts = [*doc.get("state", {}).values(), *(part for part in (doc.get("from"),) if part is not None)]
        parts += [part for part in (doc.get("posterior") or {}).values() if isinstance(part, dict)]
        for part in (*parts, *(item[1] if isinstance(item, list) else item for item in doc.get("items", []))):
            check_spec(part, ranks, depth + 1)
    if not valid:
        raise ValueError("not the description of a returned value")
    return doc


# -- taking apart ------------------------------------------------------------------------------------------------------
class _Flattener:
    """A value that is being taken apart."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._symbolic: list[tuple[Spec, Any, str]] = []  # until all tensors are known
        self._devices: list[tuple[Spec, torch.device]] = []

    def describe(self, part: Any, where: str, depth: int) -> Spec:
        """Describe a part of the value. ``where`` are the attributes and items that lead to it."""
        if depth > _DEEPEST:
            raise _refusal(part, where, f"it lies more than {_DEEPEST} values deep")
        if isinstance(part, Tensor):
            return self._tensor(part, where)
        if type(part) in _PLAIN:
            return {"constant": part}
        spec: Spec = {}
        if isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._symbolic.append((spec, part, where))
        elif isinstance(part, torch.device):
            self._devices.append((spec, part))
        elif isinstance(part, torch.dtype):
            spec["dtype"] = str(part).removeprefix("torch.")
        elif type(part) in (tuple, list, torch.Size):
            kind = "size" if type(part) is torch.Size else type(part).__name__
            spec |= {"sequence": kind, "items": self._items(part, where, depth)}
        elif type(part) in (dict, OrderedDict):
            spec |= {"mapping": type(part).__name__, "items": self._pairs(part, where, depth)}
        else:
            spec |= self._object(part, where, depth)
        return spec

    def resolve_sizes(self) -> None:
        """Describe sizes and devices in terms of the tensors."""
        for spec, device in self._devices:
            spec["device"] = None if device.type == self.tensors[0].device.type else str(device)
        for spec, size, where in self._symbolic:
            expression = size.node.expr
            places = [
                [k, d]
                for k, tensor in enumerate(self.tensors)
                for d, n in enumerate(tensor.shape)
                if isinstance(n, torch.SymInt) and n.node.expr == expression
            ]
            if isinstance(size, torch.SymInt) and expression.is_number:
                spec["constant"] = int(expression)
            elif isinstance(size, torch.SymInt) and places:
                spec["size"] = places[0]
            else:
                why = "it is computed from the input's size, and no tensor beside it has that size"
                raise _refusal(size, where, why)

    def _tensor(self, part: Tensor, where: str) -> Spec:
        if not _is_plain_tensor(part):
            raise _refusal(part, where, "it is more than a tensor")
        index = next((k for k, t in enumerate(self.tensors) if t is part), len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(part)
        return {"tensor": index}

    def _items(self, parts: Sequence[Any], where: str, depth: int) -> list[Spec]:
        return [self.describe(part, f"{where}[{n}]", depth + 1) for n, part in enumerate(parts)]

    def _pairs(self, parts: Mapping[Any, Any], where: str, depth: int) -> list[list[Any]]:
        pairs = []
        for key, part in parts.items():
            if type(key) not in _PLAIN:
                raise _refusal(key, f"{where}, a key", "it is no plain value")
            pairs.append([key, self.describe(part, f"{where}[{key!r}]", depth + 1)])
        return pairs

    def _object(self, part: Any, where: str, depth: int) -> Spec:
        cls = type(part)
        why = "it is a class" if isinstance(part, type) else _why_refused(cls)
        if why is not None:
            raise _refusal(part, where, why)
        base: Any = _base_of(cls)
        own_items: dict[Any, Any] = dict(base.items(part)) if base in (dict, OrderedDict) else {}
        items: list[Any] = self._pairs(own_items, where, depth)
        if base in (tuple, list):
            items = self._items(list(base.__iter__(part)), where, depth)
        slots = {name: getattr(part, name) for name in copyreg._slotnames(cls) if hasattr(part, name)}  # type: ignore[attr-defined]
        held = slots | getattr(part, "__dict__", {})
        state = {
            k: {"item": k} if k in own_items and own_items[k] is v else self.describe(v, f"{where}.{k}", depth + 1)
            for k, v in held.items()
        }
        return {"class": _name_of(cls), "state": state, "items": items}


def _refusal(part: Any, where: str, why: str) -> UsageError:
    what = f"the model returns a {type(part).__name__}" + (f" at {where.lstrip('.')}" if where else "")
    return UsageError(f"{what}, which tvae cannot rebuild: {why}; return tensors and plain values")


def _is_plain_tensor(part: object) -> bool:
    """Return whether it is a dense tensor of PyTorch's own class."""
    kind = type(part)
    plain = kind in (Tensor, nn.Parameter) or kind.__module__.startswith("torch._subclasses.")
    return isinstance(part, Tensor) and plain and part.layout == torch.strided and not part.is_quantized


# -- classes -----------------------------------------------------------------------------------------------------------
def _name_of(cls: type) -> str:
    """Return "module:qualname", with the id of a class that its module does not have under that name."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _class_of(name) is cls:
        return name
    name = f"{name}@{id(cls)}"
    _LOCAL_CLASSES[name] = cls
    return name


def _class_of(name: str) -> type | None:
    """Return the class of this name, if it is imported already."""
    if name in _LOCAL_CLASSES:
        return _LOCAL_CLASSES[name]
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    if not isinstance(value, ModuleType):
        return None
    for part in path.split("."):
        value = vars(value).get(part)  # not getattr: of a lazy module, that imports
        if not isinstance(value, type):
            return None
    return value if f"{value.__module__}:{value.__qualname__}" == name else None


def _base_of(cls: type) -> type:
    return next(base for base in _BASES if base in cls.__mro__)


def _why_refused(cls: type) -> str | None:
    """Return why objects of this class cannot be made again; None where they can."""
    home = str(cls.__module__).partition(".")[0]
    if cls is SimpleNamespace:
        return None
    if home in sys.stdlib_module_names:
        return "it is of Python's own library"
    if home == "torch" and not str(cls.__module__).startswith("torch.distributions."):
        return "it is of PyTorch itself"
    if issubclass(cls, nn.Module):
        return "it is a module"
    if issubclass(cls, enum.Enum):
        return "it is an enumeration"
    if hasattr(cls, "__del__"):
        return "it has something to do when it goes (__del__)"
    try:
        _blank(cls)
    except TypeError:
        return "it keeps what Python cannot see"
    return None


def _blank(cls: type, items: Sequence[Any] = ()) -> Any:
    """Return an object without state, by no code of its class. Raises TypeError for a layout of another language."""
    base: Any = _base_of(cls)
    return base.__new__(cls, tuple(items)) if base is tuple else base.__new__(cls)


def _rebuild_object(spec: Spec, tensors: Sequence[Tensor]) -> Any:
    cls: Any = _class_of(spec["class"])
    if cls is None:
        raise UsageError(f"the model returns a {spec['class']}, which is not what it was when its graph was captured")
    if "from" in spec:
        return cls(rebuild(spec["from"], tensors), **spec["arguments"])
    base: Any = _base_of(cls)
    pairs = base in (dict, OrderedDict)
    items = [rebuild(item[1] if pairs else item, tensors) for item in spec["items"]]
    value = _blank(cls, items)
    if base is list:
        list.extend(value, items)
    elif pairs:
        for (key, _), item in zip(spec["items"], items, strict=True):
            base.__setitem__(value, key, item)
    for name, part in spec["state"].items():  # no code of the class runs
        held = base.__getitem__(value, part["item"]) if "item" in part else rebuild(part, tensors)
        object.__setattr__(value, name, held)
    return value


def _nodes(spec: Spec) -> Iterator[Spec]:
    """Yield the description and all that are in it, outer ones first."""
    yield spec
    for part in (*spec.get("state", {}).values(), *spec.get("items", ())):
        yield from _nodes(part[1] if isinstance(part, list) else part)


# -- distributions -----------------------------------------------------------------------------------------------------
def add_trials(tensors: Sequence[Tensor], spec: Spec) -> tuple[list[Tensor], Spec]:
    """Append the tensors of every distribution made again to what ``flatten`` gave. Call this while tracing."""
    more = list(tensors)
    for node in _nodes(spec):
        cls = _class_of(node["class"]) if "class" in node else None
        if cls is None or not callable(getattr(cls, "sample", None)):
            continue
        flat = all(kind in _LEAVES for part in node["state"].values() for kind in part)
        node["trial"] = _Trial(node, cls, tensors, more).notes if flat else {}
    return more, spec


def settle(graph: Graph, spec: Spec) -> tuple[Graph, Spec]:
    """Return the graph with as few outputs as give the value again, and the description in terms of those.

    graph, spec: captured from what ``add_trials`` gave, in-place operations and identities removed.
    """
    if not spec:
        return graph, spec
    spec = _decide(spec, SameComputations(graph))
    used = sorted({leaf["tensor"] if "tensor" in leaf else leaf["size"][0] for leaf in _tensor_leaves(spec)})
    outputs = [graph.outputs[k] for k in used]
    spec = _renumber(spec, {k: n for n, k in enumerate(used)})
    kinds = (graph.nodes[i].meta.dtype for i in outputs)
    own = next((str(kind).removeprefix("torch.") for kind in kinds if kind.is_floating_point), None)
    for leaf in _nodes(spec):
        if own is not None and leaf.get("dtype") == own:
            leaf["dtype"] = None
    return remove_unused(replace(graph, outputs=outputs)), spec


class _Draws(Exception):
    """Raised where a trial asks for noise."""


class _NoNoise(TorchFunctionMode):
    """Refuses to draw noise: in a graph it would stay, used or not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in DRAWING:
            raise _Draws
        return func(*args, **(kwargs or {}))


class _Trial:
    """A distribution made again. ``notes`` says where among the tensors its parts are."""

    def __init__(self, node: Spec, cls: Any, tensors: Sequence[Tensor], more: list[Tensor]) -> None:
        self._node, self._cls, self._tensors, self._more = node, cls, tensors, more
        self._moments: int | None = node["state"].get("parameters", {}).get("tensor")
        self.notes: Spec = {}
        with _NoNoise():
            again = self._attempt(self._construct)
            if again is not None:
                self.notes["arguments"], self.notes["state"] = again
            copy = rebuild(node, self._copies())
            mean = self._attempt(lambda: copy.mean)
            self._note("mean", mean if isinstance(mean, Tensor) else self._attempt(lambda: copy.mode()))
            self._note("logvar", logvar := self._attempt(lambda: copy.logvar))
            self._note("std", self._attempt(lambda: copy.std))
            self._note("sample", self._attempt(lambda: copy.sample()))
            if isinstance(logvar, Tensor):
                self._note("usual std", torch.exp(0.5 * logvar))
            moments = None if self._moments is None else self._copies()[self._moments]
            if moments is not None and moments.ndim > 1 and type(moments.shape[1]) is int and moments.shape[1] % 2 == 0:
                usual = Posterior.from_moments(moments)
                self._note("usual mean", usual.mean)
                self._note("usual logvar", usual.logvar)

    def _copies(self) -> list[Tensor]:
        """Copy the tensors, for an object that changes them in place."""
        used = {part["tensor"] for part in self._node["state"].values() if "tensor" in part}
        return [t.clone() if k in used else t for k, t in enumerate(self._tensors)]

    def _construct(self) -> tuple[Spec, Spec] | None:
        """Call the constructor with the moments and the plain attributes that it has parameters for."""
        state = self._node["state"]
        if self._moments is None or type(self._cls).__call__ is not type.__call__:
            return None
        names = [*inspect.signature(self._cls).parameters][1:]
        arguments = {name: state[name]["constant"] for name in names if "constant" in state.get(name, {})}
        tensors, spec = flatten(self._cls(self._copies()[self._moments], **arguments))
        if spec.get("class") != self._node["class"] or spec["items"]:
            return None
        start = len(self._more)
        self._more += tensors
        return arguments, _renumber(spec, {k: start + k for k in range(len(tensors))})["state"]

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # a user's class may lack this: then nothing is known of it
            _log.debug("a returned object was tried without success: %s", error)
            return None

    def _note(self, name: str, value: Any) -> None:
        if _is_plain_tensor(value):
            self.notes[name] = len(self._more)
            self._more.append(value)


def _decide(spec: Spec, proof: SameComputations) -> Spec:
    """Return the description without its trials, by the constructor where that is proven to give the same."""
    decided = {k: v for k, v in spec.items() if k != "trial"}
    if "state" in spec:
        decided["state"] = {k: _decide(v, proof) for k, v in spec["state"].items()}
    if "items" in spec:
        items = spec["items"]
        decided["items"] = [[v[0], _decide(v[1], proof)] if isinstance(v, list) else _decide(v, proof) for v in items]
    trial = spec.get("trial")
    if trial is None:
        return decided
    moments = spec["state"].get("parameters", {}).get("tensor")
    decided["posterior"] = posterior = _locate_posterior(trial, moments, proof)
    usual = "arguments" in trial and posterior is not None and "moments" in posterior
    if usual and _equal(trial["state"], spec["state"], proof):
        kept = {k: v for k, v in decided.items() if k not in ("state", "items")}
        return kept | {"from": {"tensor": moments}, "arguments": trial["arguments"]}
    return decided


def _locate_posterior(trial: Mapping[str, int], moments: int | None, proof: SameComputations) -> Spec | None:
    """Return where mean and log variance are; None where the graph does not prove what they are."""
    mean, logvar, std, drawn = (trial.get(name) for name in ("mean", "logvar", "std", "sample"))
    if mean is None:
        return None
    constant = logvar is None and drawn is not None and proof.same(drawn, mean)
    point = constant or (std is not None and proof.is_zero(std))
    if not point and (logvar is None or (std is not None and not proof.same(std, trial["usual std"]))):
        return None
    usual = "usual mean" in trial and proof.same(mean, trial["usual mean"])
    if usual and (point or (logvar is not None and proof.same(logvar, trial["usual logvar"]))):
        return {"moments": {"tensor": moments}, "point": point}
    known = None if point or logvar is None else {"tensor": proof.first_equal(logvar)}
    return {"mean": {"tensor": proof.first_equal(mean)}, "logvar": known}


def _equal(one: Any, other: Any, proof: SameComputations) -> bool:
    """Return whether two descriptions are of one value, in tensors that are the same computation."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return False
        if one.keys() == {"tensor"}:
            return proof.same(one["tensor"], other["tensor"])
        return all(_equal(one[k], other[k], proof) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b, proof) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def _tensor_leaves(spec: Spec) -> Iterator[Spec]:
    for node in _nodes(spec):
        parts = [node, node.get("from"), *(node.get("posterior") or {}).values()]
        yield from (part for part in parts if isinstance(part, dict) and ("tensor" in part or "size" in part))


def _renumber(spec: Spec, numbers: Mapping[int, int]) -> Spec:
    """Return the description with its tensors under other numbers."""

    def renumber(part: Any) -> Any:
        if isinstance(part, list):
            return [renumber(p) for p in part]
        if not isinstance(part, dict):
            return part
        if part.keys() == {"tensor"}:
            return {"tensor": numbers[part["tensor"]]}
        if part.keys() == {"size"}:
            return {"size": [numbers[part["size"][0]], part["size"][1]]}
        return {k: v if k == "arguments" else renumber(v) for k, v in part.items()}

    renumbered: Spec = renumber(spec)
    return renumbered
