"""Files of weights, opened for their headers and single tensors: safetensors, and those of ``torch.save``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.pickled_tensors import PICKLED, is_pickled, read_pickled, spec_of
from tvae.pipeline.files.tensor_header import Header, read_header

__all__ = ["SAFETENSORS", "WeightsFile", "is_weights", "open_weights", "weights_header"]

SAFETENSORS = (".safetensors", ".sft")


class WeightsFile(Protocol):
    """An open file. Tensors are on the CPU, in their stored types."""

    def names(self) -> Collection[str]:
        """Of all tensors."""

    def whole(self, name: str) -> Tensor:
        """One of them."""

    def part(self, name: str, part: int, parts: int) -> Tensor:
        """One of its equal parts along dimension 0."""


def is_weights(path: Path) -> bool:
    """May it be a file of weights? By the end of its name."""
    return path.suffix.lower() in (*SAFETENSORS, *PICKLED)


def weights_header(path: Path) -> Header:
    """Read what a file holds. Raises `ValueError` for a damaged file, `OSError` for one that cannot be read."""
    if is_pickled(path):
        return Header({name: spec_of(tensor) for name, tensor in read_pickled(path).items()}, {})
    return read_header(path)


@contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """A file to read tensors of. `UsageError` names a damaged one."""
    try:
        if is_pickled(path):
            yield _Pickled(read_pickled(path))
        else:
            with safe_open(path, framework="pt") as opened:
                yield _Safetensors(opened)
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"cannot read the weights '{path}': {error}") from error


class _Safetensors:
    def __init__(self, file: Any) -> None:
        self._file = file

    def names(self) -> Collection[str]:
        return set(self._file.keys())

    def whole(self, name: str) -> Tensor:
        found: Tensor = self._file.get_tensor(name)
        return found

    def part(self, name: str, part: int, parts: int) -> Tensor:
        rows = self._file.get_slice(name)
        size = rows.get_shape()[0] // parts
        found: Tensor = rows[part * size : (part + 1) * size]
        return found


class _Pickled:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def whole(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"it has no tensor '{name}' any more")
        return self._tensors[name].contiguous()

    def part(self, name: str, part: int, parts: int) -> Tensor:
        return self.whole(name).chunk(parts)[part]
