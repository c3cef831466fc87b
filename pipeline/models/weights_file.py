"""Files of weights, opened for their headers and single tensors: safetensors, and those of ``torch.save``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.followed_pickle import StoredTensor
from tvae.pipeline.files.pickled_tensors import PICKLED, is_pickled, read_stored, tensor_at
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
    """What a file holds. `ValueError` says what is wrong with it; `OSError` when it cannot be read."""
    if is_pickled(path):
        return Header({name: stored.spec for name, stored in read_stored(path).items()}, {})
    return read_header(path)


@contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """A file to read tensors of. `UsageError` names a damaged one."""
    try:
        if is_pickled(path):
            with open_regular(path) as file:
                yield _Pickled(file, read_stored(path))
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
    def __init__(self, file: BufferedReader, stored: Mapping[str, StoredTensor]) -> None:
        self._file, self._stored = file, stored

    def names(self) -> Collection[str]:
        return self._stored.keys()

    def whole(self, name: str) -> Tensor:
        stored = self._stored.get(name)
        if stored is None:
            raise ValueError(f"it has no tensor '{name}' any more")
        return tensor_at(self._file, stored)

    def part(self, name: str, part: int, parts: int) -> Tensor:
        return self.whole(name).chunk(parts)[part]
