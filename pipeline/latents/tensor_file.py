"""One safetensors file of latents: checked on the way out and on the way in.

Written so that any other tool can read it too: plain tensors, string metadata. Tensors are `latents`, or `mean`
and `logvar`; [C, t, h, w] for a part of a clip, [C, h, w] for an image (a video VAE's may keep its time axis).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tvae.pipeline.errors import InputError
from tvae.pipeline.files import tensor_header
from tvae.pipeline.files.atomic import replacing, write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.content_checksum import CHECKSUM, of_tensors
from tvae.pipeline.files.tensor_header import BITS, Header, TensorSpec
from tvae.pipeline.files.tensor_write import FLOATING, save_file, spec_of
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.latents.alpha import ALPHA, alpha_in
from tvae.pipeline.latents.meta import FORMAT, LatentsMeta, PartRecord, from_strings, to_strings

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_OF_OTHERS = (".npy", ".npz", ".pt", ".pth")
"""Ends of files that are never of tvae: arrays of NumPy and of PyTorch."""


class WrittenTensors(NamedTuple):
    """A file as it was written. ``checksum``: of its content; ``file``: where that was asked for."""

    size: int
    checksum: str
    file: WrittenFile | None


class StoredTensors(NamedTuple):
    """All that a file holds. ``checksum``: of its content; None in a file of a program that writes none. ``alpha``: of
    an image that has one, uint8 [H, W]."""

    tensors: dict[str, Tensor]
    meta: LatentsMeta
    part: PartRecord
    checksum: str | None
    alpha: np.ndarray | None


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    meta: LatentsMeta,
    part: PartRecord,
    *,
    alpha: str | None = None,
    whole: bool = False,
) -> WrittenTensors:
    """Write the file under its final name in one step. alpha: see ``alpha_text``. whole: give the SHA-256 of all its
    bytes, too.

    `InputError` when a value is not finite: it would decode to garbage, and zeroing it would hide that.
    `OutputError` when the file cannot be written.
    `ValueError` when the tensors do not fit the metadata (a mistake of the caller, not of the data).
    """
    _check_shapes({name: spec_of(tensor) for name, tensor in tensors.items()}, meta, part)
    check_finite(tensors, meta.source.name)
    stored = {name: own_memory(tensor) for name, tensor in tensors.items()}
    texts = to_strings(meta, part) | ({} if alpha is None else {ALPHA: alpha})
    digest = hashlib.sha256() if whole else None
    try:
        with replacing(path) as temporary:
            checksum = save_file(stored, temporary, texts, digest)
            status = temporary.stat()
    except OSError as error:
        raise write_error(path, error) from error
    file = None if digest is None else WrittenFile(status.st_size, status.st_mtime_ns, digest.hexdigest())
    return WrittenTensors(status.st_size, checksum, file)


def read_tensors(path: Path) -> StoredTensors:
    """Read and check everything. The tensors own their memory: the file is closed, and may be replaced.

    `InputError` names the file and says whether it is missing, truncated, not of tvae, inconsistent, damaged (by its
    checksum, if it has one) or not finite.
    """
    try:
        with open_regular(path) as file:
            header, starts = tensor_header.header_of(file)
            meta, part = _checked(header, path)
            alpha = alpha_in(header.metadata, meta.geometry.size) if meta.kind == "image" else None
            tensors = {name: _values(file, starts[name], spec) for name, spec in header.tensors.items()}
    except OSError as error:
        raise InputError(f"cannot read latents '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"'{path}': {error}") from error
    checksum = header.metadata.get(CHECKSUM)
    if checksum is not None and checksum != of_tensors(tensors, header.metadata):
        raise InputError(f"'{path}' is damaged: its values or metadata are not those that were written; encode again")
    check_finite(tensors, str(path))
    return StoredTensors(tensors, meta, part, checksum, alpha)


def read_header(path: Path) -> tuple[LatentsMeta, PartRecord, dict[str, TensorSpec]]:
    """Metadata, and the tensors' types and shapes by name, without reading a value.

    `InputError` as for :func:`read_tensors`; a file that ends too early is noticed here.
    """
    try:
        header = tensor_header.read_header(path)
        return *_checked(header, path), header.tensors
    except OSError as error:
        raise InputError(f"cannot read latents '{path}': {error.strerror or error}") from error
    except ValueError as error:
        if path.suffix.lower() in _OF_OTHERS:
            raise InputError(f"'{path}': not latents of tvae; pass --vae and --space for another program's") from error
        raise InputError(f"'{path}': {error}") from error


def is_ours(path: Path) -> bool:
    """Whether this is a whole safetensors file that says it holds latents of tvae."""
    try:
        return tensor_header.read_header(path).metadata.get("format") == FORMAT
    except (OSError, ValueError):
        return False


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """`InputError` when a value is NaN or infinite."""
    for name, tensor in tensors.items():
        bad = tensor.numel() - int(tensor.isfinite().sum())
        if bad:
            raise InputError(f"'{where}': {bad} of {tensor.numel()} values of '{name}' are not finite")


def _checked(header: Header, path: Path) -> tuple[LatentsMeta, PartRecord]:
    """`ValueError` for what is not of tvae, `InputError` for tensors that do not fit their metadata."""
    meta, part = from_strings(header.metadata)
    try:
        _check_shapes(header.tensors, meta, part)
    except ValueError as error:
        raise InputError(f"damaged latents '{path}': {error}") from error
    return meta, part


def _values(file: BufferedReader, start: int, spec: TensorSpec) -> Tensor:
    """In memory of their own. `ValueError` for a file that has become shorter."""
    import torch

    memory = bytearray(math.prod(spec.shape) * BITS[spec.dtype] // 8)
    file.seek(start)
    if file.readinto(memory) != len(memory):
        raise ValueError(tensor_header.DAMAGED)
    return torch.frombuffer(memory, dtype=getattr(torch, FLOATING[spec.dtype])).reshape(spec.shape)


def _check_shapes(tensors: Mapping[str, TensorSpec], meta: LatentsMeta, part: PartRecord) -> None:
    names = {"mean", "logvar"} if meta.posterior.kind == "moments" else {"latents"}
    if set(tensors) != names:
        raise ValueError(f"expected the tensors {sorted(names)}, found {sorted(tensors)}")
    shapes = {tensor.shape for tensor in tensors.values()}
    if len(shapes) != 1:
        raise ValueError(f"tensors of different shapes {sorted(shapes)}")
    (shape,) = shapes
    ranks = {4} if meta.kind == "video" else {3} if meta.vae.temporal_factor is None else {3, 4}
    if len(shape) not in ranks or 0 in shape:
        wanted = " or ".join(map(str, sorted(ranks)))
        raise ValueError(f"expected {wanted} dimensions, none of them 0, found shape {list(shape)}")
    if not {tensor.dtype for tensor in tensors.values()} <= {*FLOATING}:
        raise ValueError("values are not floating point of 16 bits or more")
    if (shape[0], *shape[-2:]) != (expected := _expected_size(meta)):
        raise ValueError(f"expected C, h, w = {expected} from the metadata, found shape {list(shape)}")
    if meta.kind == "video" and len(part.pts) != len(part.durations):
        raise ValueError(f"{len(part.pts)} timestamps but {len(part.durations)} durations")
    if meta.kind == "video" and meta.vae.temporal_factor is None and len(part.pts) != shape[1]:
        raise ValueError(f"{shape[1]} frames but {len(part.pts)} timestamps")


def _expected_size(meta: LatentsMeta) -> tuple[int, int, int]:
    width, height = meta.geometry.padded_size
    factor, channels = meta.vae.spatial_factor, meta.vae.latent_channels
    if meta.space.name == "model":
        factor, channels = factor * meta.space.patch, channels * meta.space.patch**2
    return channels, -(-height // factor), -(-width // factor)


def own_memory(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, and not a view into a larger buffer (safetensors refuses shared memory)."""
    tensor = tensor.detach().cpu().contiguous()
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()
