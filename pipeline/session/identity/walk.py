"""Walks over everything that decides what a module computes, writes it down as text, and puts it on a watchlist.

Whatever is not plain gets a number and a line of text when it is first met; later mentions give only the number.
That ends cycles and tells one object in two places from two equal ones. Things are looked at in the order in which they
are met; sets and names are sorted: the text is the same in every process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from tvae.pipeline.engine.capture.scalar_weights import is_scalar
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.identity.code import plain
from tvae.pipeline.session.identity.library import library_class
from tvae.pipeline.session.identity.objects import described_object
from tvae.pipeline.session.identity.reach import CODE, Reach
from tvae.pipeline.session.identity.tree import (
    FORWARD_HOOKS,
    GLOBAL_HOOKS,
    NO_PART,
    REGISTRIES,
    derived,
    moved_by_accelerate,
)
from tvae.pipeline.session.identity.watchlist import Watchlist
from tvae.pipeline.session.tensor_digest import tensor_digest

__all__ = ["Walk"]

_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
_FOREIGN_PARTS = 32
"""A module that is no part of the tree is looked into up to this many parts."""

_SMALL = 1 << 16
"""Bytes of a constant that are looked at before every call, for who writes to it without PyTorch's notice."""


class Walk:
    """numbers: values of weights of one number count, too. lines: the text. why: what could not be digested; that is
    told by its id and kept alive in ``held``. met: all that is numbered, kept alive so that no id comes twice."""

    def __init__(self, root: nn.Module, ignored: Collection[str], *, numbers: bool = False) -> None:
        self.lines: list[str] = []
        self.why = ""
        self.held: list[Any] = []
        self.watch = Watchlist()
        self._root, self._ignored, self._with_numbers = root, frozenset(ignored), numbers
        self._numbers: dict[int, int] = {}
        self.met: list[Any] = []
        self._queue: deque[Callable[[], None]] = deque()
        self._marked: dict[int, tuple[Tensor, str, set[str]]] = {}
        self._tree = {id(part): name for name, part in root.named_modules()}
        self.reach = Reach(self)

    def run(self) -> None:
        """Look at everything."""
        for part in self._root.modules():
            self.value(part, self._tree[id(part)])
        for name in GLOBAL_HOOKS:
            self.lines.append(self._hooks(vars(torch_module), name, name))
        while True:
            while self._queue:
                self._queue.popleft()()
            if not self._tell_marks():
                break
        if self.reach.asks_training:
            self.lines.append(f"in training: {[name for name, part in self._root.named_modules() if part.training]}")
        if self.reach.asks_gradients:
            self.lines.append(f"with gradients: {_with_gradients(self._root)}")
            self.watch.view(lambda: _with_gradients(self._root))
        self.watch.seal()

    def close(self) -> None:
        """Drop what follows code: it refers back to this object, and the cycle would keep the model for a while."""
        del self.reach

    def later(self, task: Callable[[], None]) -> None:
        """Do this after everything that was met before."""
        self._queue.append(task)

    def value(self, value: Any, path: str) -> str:
        """A value as its holder tells it. path: where it is, for people."""
        text = plain(value)
        if text is not None:
            return text
        kind = type(value)
        if kind is tuple or kind is torch.Size:
            return f"({', '.join([self.value(v, f'{path}[{n}]') for n, v in enumerate(value)])})"
        if isinstance(value, type) and library_class(value):
            self.reach.alive(value)
            return f"class {value.__module__}.{value.__qualname__}"
        number = self._numbers.get(id(value))
        if number is None:
            number = self._number(value)
            self._queue.append(lambda: self.lines.append(f"#{number} {self._described(value, path)}"))
        return f"#{number}"

    def opaque(self, value: Any, path: str, what: str = "") -> str:
        """A value that can be named by its id only."""
        self.why = self.why or f"{path or 'the model'}: {what or f'an object of class {type(value).__qualname__}'}"
        self.held.append(value)
        return f"object {id(value)}"

    def kind(self, value: Any) -> str:
        """An object's class."""
        kind = type(value)
        return self.value(kind, kind.__qualname__)

    def attributes(self, state: Mapping[str, Any], path: str, leave: Collection[str] = ()) -> str:
        """What an object holds by name."""
        names = sorted([name for name in state if name not in leave]) if leave else sorted(state)
        dot = "." if path else ""
        return ", ".join([f"{name}={self.value(state[name], f'{path}{dot}{name}')}" for name in names])

    def tensor(self, value: Tensor | None, path: str) -> str:
        """A tensor without its values: its number, type and layout."""
        if value is None:
            return "None"
        self.watch.tensor(value)
        if id(value) not in self._marked:
            self._marked[id(value)] = value, path, set()
            self.watch.container(vars(value))
        if type(value) not in _TENSORS or value.layout is not torch.strided:
            return self.opaque(value, path, f"a tensor of class {type(value).__qualname__}")
        number = self._numbers.get(id(value))
        number = self._number(value) if number is None else number
        return f"tensor {number} {tuple(value.shape)} {value.stride()} {value.dtype}"

    def _tell_marks(self) -> bool:
        """Tell attributes that somebody gave to tensors, of names that some code mentions. Were there such that had not
        been told?"""
        found = False
        for value, path, told in self._marked.values():
            names = (vars(value).keys() & self.reach.mentioned) - told
            if names:
                found = True
                told |= names
                self.lines.append(f"{path} {self.attributes({n: vars(value)[n] for n in names}, path)}")
        return found

    def _number(self, value: Any) -> int:
        number = self._numbers[id(value)] = len(self.met)
        self.met.append(value)
        return number

    def _described(self, value: Any, path: str) -> str:
        if isinstance(value, nn.Module):
            return self._module(value, path)
        if isinstance(value, Tensor):
            return self._constant(value, path)
        if isinstance(value, CODE):
            return self.reach.described(value, path)
        return described_object(self, value, path)

    def _constant(self, value: Tensor, path: str) -> str:
        """A tensor that is neither parameter nor buffer: its values are part of what is computed."""
        text = self.tensor(value, path)
        if value.is_meta or text.startswith("object"):
            return text
        if value.device.type == "cpu" and value.nbytes <= _SMALL:
            self.watch.view(lambda: _bytes(value))
        return f"{text} {tensor_digest(value)}"

    def _weight(self, value: Tensor | None, path: str) -> str:
        """A parameter or buffer, with its value where that counts; on a GPU to look at it waits for the device."""
        text = self.tensor(value, path)
        if not self._with_numbers or value is None or not is_scalar(value) or text.startswith("object"):
            return text
        number = value
        self.watch.view(lambda: _bytes(number))
        return f"{text} {tensor_digest(number)}"

    def _module(self, part: nn.Module, path: str) -> str:
        if isinstance(part, torch.jit.ScriptModule):
            return self.opaque(part, path, "a scripted module")
        told = []
        if id(part) not in self._tree and any(True for _ in part.parameters()):
            told.append(self.opaque(part, path, f"weights of a {type(part).__qualname__} that is no part of the model"))
            if sum(1 for _ in part.modules()) > _FOREIGN_PARTS:
                return told[0]
        state: dict[str, Any] = vars(part)
        root = part is self._root
        leave = derived(part) | self._ignored if root else derived(part)

        def left_out(state: dict[str, Any]) -> set[str]:
            return leave | moved_by_accelerate(state) if root and "_hf_hook" in state else leave

        for name, held in (*part._parameters.items(), *part._buffers.items()):
            if held is not None and is_lazy(held):
                raise UsageError(f"'{path}{'.' if path else ''}{name}' has no values yet: call the wrapped model once")
        self.watch.kind(part)
        self.watch.container(state, left_out, numbers=not library_class(type(part)))
        for name in REGISTRIES:
            self.watch.container(state[name])
        self.watch.order(part._modules)
        dot = "." if path else ""
        lines = [*told, self.kind(part), self.attributes(state, path, NO_PART | left_out(state))]
        for tensors in (part._parameters, part._buffers):
            lines += [f"{name}: {self._weight(t, f'{path}{dot}{name}')}" for name, t in sorted(tensors.items())]
        lines += [f"{name}: {self.value(child, f'{path}{dot}{name}')}" for name, child in part._modules.items()]
        return " | ".join(lines + [self._hooks(state, name, f"{path}{dot}{name}") for name in FORWARD_HOOKS])

    def _hooks(self, state: Mapping[str, Any], name: str, path: str) -> str:
        """Hooks in their order; their keys are counted through the life of the process."""
        hooks = state[name]
        self.watch.container(hooks)
        flags = [state.get(f"{name}_with_kwargs", {}), state.get(f"{name}_always_called", {})]
        for kept in flags if hooks else ():
            self.watch.container(kept)
        told = [
            (self.value(hook, f"{path}[{n}]"), *(key in f for f in flags))
            for n, (key, hook) in enumerate(hooks.items())
        ]
        return f"hooks {told}"


def _with_gradients(root: nn.Module) -> list[str]:
    """Weights that require gradients, which some code asks for."""
    return [name for name, weight in root.named_parameters() if weight.requires_grad]


def _bytes(value: Tensor) -> bytes:
    """What a tensor holds."""
    raw: bytes = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw
