"""A VAE on disk: its configuration and the files that hold its weights. Nothing is loaded here."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import is_name, open_regular, read_json
from tvae.pipeline.files.pickled_tensors import PICKLED, is_pickled
from tvae.pipeline.files.tensor_header import BITS, TensorSpec, header_of
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.checksum import remembered, sha256_of_files
from tvae.pipeline.models.single_file import Found
from tvae.pipeline.models.weights_file import open_weights, weights_header

CONFIG_NAME = "config.json"
WEIGHTS_STEM = "diffusion_pytorch_model"
SUBFOLDERS = ("vae", "movq", "vqvae")
"""Where diffusers' pipelines keep their autoencoder."""

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OLD_ATTENTION = (".query.weight", ".key.weight", ".value.weight", ".proj_attn.weight")


@dataclass(frozen=True)
class VaeSource:
    """One autoencoder in diffusers' layout, or one known by its weights. All errors are `UsageError`, name the file."""

    id: str
    """As the user named it: `builtin`, a folder, a file or a hub id."""
    class_name: str
    config: dict[str, Any]
    folder: Path
    """The local folder of the weights and, in diffusers' layout, of `config.json`."""
    weight_files: tuple[Path, ...]
    """Safetensors, several when sharded; or a file of ``torch.save``, where that was allowed."""
    variant: str | None = None
    """`fp16` for `diffusion_pytorch_model.fp16.safetensors`, and so on."""
    path: str | None = None
    """The folder or file that the user named, absolute; None for `builtin` and the hub's."""
    found: Found | None = None
    """What a single file was recognised as, or two with a side each; None for a folder with a configuration."""
    lacks: Mapping[Side, str] = field(default_factory=dict)
    """Sides that the weights do not hold, and a sentence for people who want them."""

    @cached_property
    def config_sha256(self) -> str:
        """Hex digest of the configuration without diffusers' own notes (keys that begin with `_`)."""
        content = {key: value for key, value in self.config.items() if not key.startswith("_")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def weights_sha256(self) -> str:
        """Hex digest of the weights' file; of several, of their digests; of a checkpoint, of the VAE's part of it."""
        try:
            if self.found is not None and self.found.prefix:
                return remembered(self.weight_files[0], "-vae", self._sha256_of_part)
            return sha256_of_files(self.weight_files)
        except OSError as error:
            raise UsageError(f"cannot read the weights of VAE '{self.id}': {error}") from error

    def _sha256_of_part(self) -> str:
        """Of the stored bytes of a checkpoint's tensors that are the VAE's, with their names."""
        assert self.found is not None, "a folder has no such part"
        found = hashlib.sha256()
        names = sorted({piece.stored for piece in self.found.pieces.values()})
        if is_pickled(self.weight_files[0]):
            with open_weights(self.weight_files[0]) as weights:
                for name in names:
                    spec = self._stored[0][name]
                    found.update(json.dumps([name, spec.dtype, spec.shape]).encode())
                    found.update(weights.whole(name).reshape(-1).view(torch.uint8).numpy().data)
            return found.hexdigest()
        with open_regular(self.weight_files[0]) as file:
            header, begins = header_of(file)
            for name in names:
                spec = header.tensors[name]
                found.update(json.dumps([name, spec.dtype, spec.shape]).encode())
                file.seek(begins[name])
                found.update(file.read(prod(spec.shape) * BITS[spec.dtype] // 8))
        return found.hexdigest()

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """Types and shapes of all its tensors, from the files' headers. Of a single file, by the module's names.

        `UsageError` for weights that are no floating-point numbers.
        """
        if self.found is not None:
            tensors = {
                name: TensorSpec(self._stored[piece.file][piece.stored].dtype, piece.shape)
                for name, piece in self.found.pieces.items()
            }
        else:
            tensors = {name: spec for stored in self._stored for name, spec in stored.items()}
        for name, spec in tensors.items():
            if spec.shape and not spec.dtype.startswith(("F", "BF")):  # counters are whole numbers, without a shape
                raise UsageError(
                    f"the weights of VAE '{self.id}' are no floating-point numbers: '{name}' is stored as "
                    f"{spec.dtype}; take the VAE in float32, bfloat16 or float16"
                )
        return tensors

    @cached_property
    def _stored(self) -> list[dict[str, TensorSpec]]:
        """Of each file."""
        found: list[dict[str, TensorSpec]] = []
        for path in self.weight_files:
            try:
                found.append(dict(weights_header(path).tensors))
            except (OSError, ValueError) as error:
                raise UsageError(f"cannot read the weights '{path}': {error}") from error
        return found

    @property
    def stored_dtype(self) -> torch.dtype:
        """The floating type most weights are stored in; float32 if none is."""
        sizes: Counter[str] = Counter()
        for spec in self.tensors.values():
            sizes[spec.dtype] += prod(spec.shape)
        return next((_FLOATS[name] for name, _ in sizes.most_common() if name in _FLOATS), torch.float32)

    @property
    def keys_are_current(self) -> bool:
        """Whether the stored names are those of the module's `state_dict`.

        Checkpoints from before diffusers 0.17 name the attention's weights `query`, `key`, `value` and `proj_attn`;
        `from_pretrained` renames them, so such weights have to go through `load_module`.
        """
        return not any(name.endswith(_OLD_ATTENTION) for name in self.tensors)


def has_config(folder: Path) -> bool:
    """Is it in diffusers' layout, a VAE's own or a pipeline's?"""
    return any((folder / name / CONFIG_NAME).is_file() for name in ("", *SUBFOLDERS))


def read_folder(spec: str, folder: Path) -> VaeSource:
    """The VAE in `folder`, or in the subfolder where a pipeline keeps it. `UsageError` says what is wrong."""
    if not (folder / CONFIG_NAME).is_file():
        folder = next((folder / name for name in SUBFOLDERS if (folder / name / CONFIG_NAME).is_file()), folder)
    config = _read_json(folder / CONFIG_NAME, f"VAE '{spec}'")
    class_name = config.get("_class_name")
    if not isinstance(class_name, str):
        raise UsageError(f"'{folder / CONFIG_NAME}' is not a diffusers model: it names no _class_name")
    if config.get("quantization_config") is not None:
        raise UsageError(
            f"'{folder / CONFIG_NAME}' has a quantization_config: tvae reads no quantised VAE; take the one in "
            "float32, bfloat16 or float16"
        )
    files, variant = _weight_files(folder)
    return VaeSource(spec, class_name, config, folder, files, variant)


def read_beside(spec: str, path: Path) -> VaeSource | None:
    """The VAE of a file in diffusers' layout with its `config.json` beside it; None if there is none."""
    variant = _variant_of_file(path.name)
    if variant is None or not (path.parent / CONFIG_NAME).is_file():
        return None
    return replace(read_folder(spec, path.parent), weight_files=(path,), variant=variant or None)


def pick_weights(names: list[str]) -> tuple[str, str | None] | None:
    """The weights' file (or the index of its shards) and its variant among a folder's file names.

    The plain one, else a variant: fp16 first, then by name. None: there is none.
    """
    found: dict[str, str] = {}
    for name in names:
        index = name.endswith(".json")
        variant = _variant_of_index(name) if index else _variant_of_file(name)
        if variant is not None and (variant not in found or not index):
            found[variant] = name
    if not found:
        return None
    best = min(found, key=lambda variant: (variant != "", variant != "fp16", variant))
    return found[best], best or None


def shards_of(index: Path) -> tuple[str, ...]:
    """Names of the files that an index of shards lists, sorted."""
    table = _read_json(index, "the index of the weights").get("weight_map")
    if not isinstance(table, dict) or not table:
        raise UsageError(f"'{index}' lists no weights")
    names = sorted({str(name) for name in table.values()})
    for name in names:
        if not is_name(name):
            raise UsageError(f"'{index}' names a file outside of its folder: '{name}'")
    return tuple(names)


def pickled_error(where: str) -> UsageError:
    """Of a folder, or a repository of the hub."""
    return UsageError(
        f"'{where}' holds pickled weights only, which tvae does not open (a pickle can run any code); save them as "
        "safetensors: model.save_pretrained(folder, safe_serialization=True), or name one file and pass --allow-pickle"
    )


def _weight_files(folder: Path) -> tuple[tuple[Path, ...], str | None]:
    names = sorted(path.name for path in folder.iterdir())
    picked = pick_weights(names)
    if picked is None:
        if any(name.endswith(PICKLED) for name in names):
            raise pickled_error(str(folder))
        raise UsageError(f"no weights in '{folder}': there is no {WEIGHTS_STEM}.safetensors")
    name, variant = picked
    files = tuple(folder / n for n in (shards_of(folder / name) if name.endswith(".json") else (name,)))
    for path in files:
        if not path.is_file():
            raise UsageError(f"the weights are incomplete: '{path}' is missing")
    return files, variant


def _variant_of_file(name: str) -> str | None:
    """`diffusion_pytorch_model[.<variant>].safetensors` → variant, "" for the plain one, None for other names."""
    if not (name.startswith(WEIGHTS_STEM) and name.endswith(".safetensors")):
        return None
    middle = name[len(WEIGHTS_STEM) : -len(".safetensors")]
    return middle.removeprefix(".") if (middle == "" or middle.startswith(".")) and "-of-" not in middle else None


def _variant_of_index(name: str) -> str | None:
    """`diffusion_pytorch_model.safetensors.index[.<variant>].json` → variant, "" for the plain one."""
    start, end = f"{WEIGHTS_STEM}.safetensors.index", ".json"
    return name[len(start) : -len(end)].removeprefix(".") if name.startswith(start) and name.endswith(end) else None


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UsageError(f"{what}: there is no '{path}'") from None
    except OSError as error:
        raise UsageError(f"{what}: cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{what}: '{path}' is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{what}: '{path}' is not a JSON object")
    return content
