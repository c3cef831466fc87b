"""A pickle, followed instruction by instruction as data: no code in it runs, nothing is imported, nothing is called.

`pickletools` decodes the instructions. What ``torch.save`` writes of dictionaries and tensors is understood; any other
object is a value of which nothing is known. Time and memory are in proportion to the pickle's length.

``torch.load(weights_only=True)`` is no substitute. It refuses checkpoints that hold objects of a training framework,
which many published ones do, and a few instructions make it take any amount of memory.

Sources: PyTorch's functions ``_save`` and ``_load`` (torch.serialization) and ``_rebuild_tensor_v2`` (torch._utils).
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvae.pipeline.files.tensor_header import BITS, TensorSpec
from tvae.pipeline.files.tensor_types import STORED_TYPES

__all__ = ["StoredTensor", "bytes_of", "followed", "span"]

_TYPES = {name: stored for stored, name in STORED_TYPES.items()}
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
    "UntypedStorage": "U8",
}
_DICTS = ("collections OrderedDict", "collections defaultdict")
_REBUILT = ("torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3")
_PARAMETERS = ("torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. begin: byte of the file where its first value is. strides: in values."""

    spec: TensorSpec
    begin: int
    strides: tuple[int, ...]


class _Global(NamedTuple):
    """``module name``, as the pickle asks for it."""

    name: str


class _Storage(NamedTuple):
    dtype: str
    begin: int
    bytes: int


class _Unknown:
    """An object of which nothing is known."""


_UNKNOWN, _MARK = _Unknown(), object()


def followed(content: bytes, records: Callable[[str], tuple[int, int] | None]) -> Any:
    """The value of a pickle: dictionaries with texts as keys, tuples, numbers, texts and `StoredTensor`.

    records: where the storage of a key begins in the file, and its length in bytes. Any error is damage.
    """
    return _Followed(records).value(content)


class _Followed:
    """A stack machine. See ``followed``."""

    def __init__(self, records: Callable[[str], tuple[int, int] | None]) -> None:
        self._records = records
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def value(self, content: bytes) -> Any:
        for op, arg, _ in pickletools.genops(content):
            self._follow(op, arg)
        return self._stack[-1]

    def _follow(self, op: pickletools.OpcodeInfo, arg: Any) -> None:
        stack, pop = self._stack, self._stack.pop
        match op.name:
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[op.name])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(self._to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [pop() for _ in range(int(op.name[-1]))]
                stack.append(tuple(reversed(items)))
            case "EMPTY_DICT":
                stack.append({})
            case "SETITEM":
                value, key = pop(), pop()
                self._put(stack[-1], [key, value])
            case "SETITEMS":
                items = self._to_mark()
                self._put(stack[-1], items)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[arg] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[arg])
            case "GLOBAL":
                stack.append(_Global(arg))
            case "STACK_GLOBAL":
                name, module = pop(), pop()
                stack.append(_Global(f"{module} {name}"))
            case "REDUCE":
                args, function = pop(), pop()
                stack.append(self._called(function, args))
            case "BINPERSID":
                stack.append(self._storage(pop()))
            case "BUILD":
                pop()  # what an object is told of itself
            case _ if not op.stack_before and len(op.stack_after) == 1 and op.arg is not None:
                stack.append(arg)  # a number or a text
            case name if name != "STOP":
                self._do_unknown(op)

    def _do_unknown(self, op: pickletools.OpcodeInfo) -> None:
        """Take from the stack what the instruction takes, and put something unknown for what it makes."""
        takes = [*op.stack_before]
        if pickletools.markobject in takes:
            self._to_mark()
            takes = takes[: takes.index(pickletools.markobject)]
        for _ in takes:
            self._stack.pop()
        self._stack += [_UNKNOWN] * len(op.stack_after)

    def _to_mark(self) -> list[Any]:
        """All above the last mark, taken off with it."""
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _put(self, target: Any, items: list[Any]) -> None:
        """Values under names; other keys are of no use."""
        if type(target) is dict:
            target.update((key, value) for key, value in zip(items[::2], items[1::2], strict=True) if type(key) is str)

    def _called(self, function: Any, args: Any) -> Any:
        if not isinstance(function, _Global) or type(args) is not tuple:
            return _UNKNOWN
        if function.name in _DICTS:
            return {}
        if function.name in _PARAMETERS and args and isinstance(args[0], StoredTensor):
            return args[0]
        return self._rebuilt(args) if function.name in _REBUILT and len(args) > 3 else _UNKNOWN

    def _storage(self, told: Any) -> Any:
        if type(told) is not tuple or len(told) != 5 or not isinstance(told[1], _Global) or type(told[2]) is not str:
            return _UNKNOWN
        dtype, place, count = _STORAGES.get(told[1].name.split(" ")[-1]), self._records(told[2]), told[4]
        if dtype is None or place is None or type(count) is not int:
            return _UNKNOWN
        size = count * BITS[dtype] // 8
        return _Storage(dtype, place[0], size) if 0 <= size <= place[1] else _UNKNOWN

    def _rebuilt(self, args: tuple[Any, ...]) -> Any:
        """A tensor inside of its storage."""
        storage, offset, shape, strides = args[:4]
        if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
            return _UNKNOWN
        dtype = storage.dtype
        if len(args) > 6 and isinstance(args[6], _Global):  # of a storage that has no type
            dtype = _TYPES.get(args[6].name.removeprefix("torch "), "")
        whole = all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)) and len(shape) == len(strides)
        if not whole or dtype not in STORED_TYPES:
            return _UNKNOWN
        size = BITS[dtype] // 8
        inside = 0 in shape or (offset + span(shape, strides)) * size <= storage.bytes
        return StoredTensor(TensorSpec(dtype, shape), storage.begin + offset * size, strides) if inside else _UNKNOWN


def bytes_of(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * BITS[spec.dtype] // 8


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Values from the first one to the last one in memory."""
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
