"""Tensors in a file of ``torch.save``, found without unpickling it: no code in such a file runs.

The file is a ZIP archive of uncompressed records: ``data.pkl``, a pickle of dictionaries whose tensors name their
storage, and the storages. The pickle is followed as data (``followed_pickle``), and values are read where they are.
"""

from __future__ import annotations

import os
import zipfile
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.followed_pickle import StoredTensor, bytes_of, followed, span
from tvae.pipeline.files.tensor_header import BITS
from tvae.pipeline.files.tensor_types import STORED_TYPES

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PICKLED", "is_archive", "is_pickled", "read_stored", "tensor_at"]

PICKLED = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
"""Ends of names of files that ``torch.save`` writes."""
MOST_PICKLE = 16 << 20
"""Bytes of instructions: a checkpoint of 10,000 tensors has 2 MiB."""
MOST_SHARED = 4
"""Times as many bytes as the file has, in tensors that share storages,"""
MORE_SHARED = 1 << 24
"""and so many."""


def is_pickled(path: Path) -> bool:
    """Is it a file of ``torch.save``? By the end of its name."""
    return path.suffix.lower() in PICKLED


def is_archive(path: Path) -> bool:
    """Is it a ZIP archive, as ``torch.save`` writes since PyTorch 1.6? `OSError`."""
    with open_regular(path) as file:
        return file.read(4) == b"PK\3\4"


def read_stored(path: Path, alone: str | None = None) -> dict[str, StoredTensor]:
    """The tensors of a dictionary of weights by name, or of one in it (``state_dict``).

    What is in the dictionary besides tensors is left out. alone: the name for a tensor without any; None: there must be
    a dictionary. `ValueError` says in one line why there is none, `OSError` that the file cannot be read.
    """
    with open_regular(path) as file:
        size, records = os.fstat(file.fileno()).st_size, _records(file)
        root = _root(records)
        begin, length = records[f"{root}/data.pkl"]
        if length > MOST_PICKLE:
            raise ValueError(f"its pickle has more than {MOST_PICKLE} bytes")
        file.seek(begin)
        content = file.read(length)
        if f"{root}/byteorder" in records:
            begin, length = records[f"{root}/byteorder"]
            file.seek(begin)
            if file.read(min(length, 16)) != b"little":
                raise ValueError("its values are big-endian; save it on another machine")
    try:
        value = followed(content, lambda key: records.get(f"{root}/data/{key}"))
    except Exception as error:  # whatever damage makes of instructions, it is the file that is bad
        raise ValueError(f"its pickle is damaged ({type(error).__name__})") from error
    found = {alone: value} if alone is not None and isinstance(value, StoredTensor) else _weights_in(value)
    if sum(bytes_of(one.spec) for one in found.values()) > MOST_SHARED * size + MORE_SHARED:
        raise ValueError("damaged: its tensors have far more values than the file")
    return found


def tensor_at(file: BufferedReader, stored: StoredTensor) -> Tensor:
    """A contiguous tensor of its own out of an open file. `ValueError` where the file has become shorter."""
    import torch

    shape, dtype = stored.spec.shape, getattr(torch, STORED_TYPES[stored.spec.dtype])
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = BITS[stored.spec.dtype] // 8
    content = bytearray(span(shape, stored.strides) * size)
    file.seek(stored.begin)
    if file.readinto(content) != len(content):
        raise ValueError("it has become shorter while it was read")
    values = torch.frombuffer(content, dtype=torch.uint8).view(dtype)
    return values.as_strided(shape, stored.strides).contiguous()


def _records(file: BufferedReader) -> dict[str, tuple[int, int]]:
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except Exception as error:  # zipfile raises errors of many types for damage
        why = "damaged, of another format, or from before PyTorch 1.6"
        raise ValueError(f"not a whole file of torch.save ({why})") from error
    found: dict[str, tuple[int, int]] = {}
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise ValueError("its records are compressed or encrypted, which torch.save never does")
        head = b""
        if 0 <= info.header_offset < size:
            file.seek(info.header_offset)
            head = file.read(30)
        begin = info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        if head[:4] != b"PK\3\4" or begin + info.file_size > size or info.filename in found:
            raise ValueError("damaged: its records have no places of their own")
        found[info.filename] = begin, info.file_size
    return found


def _root(records: dict[str, tuple[int, int]]) -> str:
    """The folder that everything is in."""
    roots = {name.partition("/")[0] for name in records}
    root = roots.pop() if len(roots) == 1 else ""
    if f"{root}/data.pkl" not in records:
        raise ValueError("a ZIP archive, but not of torch.save")
    if f"{root}/constants.pkl" in records:
        raise ValueError("a TorchScript program; save the model's state_dict")
    return root


def _weights_in(value: Any) -> dict[str, StoredTensor]:
    if isinstance(value, StoredTensor):
        raise ValueError("it holds a tensor without a name")
    if type(value) is not dict:
        raise ValueError("it holds objects of Python's instead of tensors by name; save those alone")
    inner = {name: more for name, one in value.items() if type(one) is dict and (more := _tensors(one))}
    if found := inner.get("state_dict") or _tensors(value):
        return found
    if len(inner) > 1:
        raise ValueError(f"it holds several sets of weights ({', '.join(sorted(inner))}); save one alone")
    if not inner:
        raise ValueError("it holds no tensors by name")
    return next(iter(inner.values()))


def _tensors(value: dict[str, Any]) -> dict[str, StoredTensor]:
    found = {name: one for name, one in value.items() if isinstance(one, StoredTensor)}
    for name in found:
        if not name.isprintable():
            raise ValueError(f"a tensor has the name {name!a}")
    return found
