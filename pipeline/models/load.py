"""From what the user names to a VAE: `locate_vae` finds it, `load_weights` and `load_module` load it.

Weights are read from safetensors and, where that is allowed, from files of ``torch.save``, as data. diffusers is
imported by `load_module` alone (it costs seconds), the network is used for hub ids alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.pickled_tensors import is_pickled
from tvae.pipeline.models import hub
from tvae.pipeline.models.bounded_build import bounded_build
from tvae.pipeline.models.checksum import remembered
from tvae.pipeline.models.expected_shapes import filled_module
from tvae.pipeline.models.seedvr2 import checkpoint
from tvae.pipeline.models.source import VaeSource, has_config, read_beside, read_folder
from tvae.pipeline.models.values_checksum import values_checksums
from tvae.pipeline.models.weights_file import SAFETENSORS, WeightsFile, open_weights
from tvae.pipeline.models.without_config import read_alone, read_file
from tvae.presets import builtin

__all__ = ["VaeSource", "load_module", "load_weights", "locate_vae", "values_of"]

BUILTIN = builtin.NAME


def locate_vae(spec: str, of: str | None = None, *, allow_pickle: bool = False) -> VaeSource:
    """Find a VAE: `builtin`, a diffusers folder (the VAE's own, or a pipeline's), a safetensors file, or a hub id.

    A file, or a folder with one and without configuration, is known by its tensors: a VAE alone, or a whole checkpoint.
    A file with one side of a VAE takes the other side from the file beside it, whose name says `encoder` where its own
    says `decoder`; without such a file the VAE `lacks` that side.
    of: which public model such a file is of (`sdxl`), where its tensors do not tell; it decides on model space alone.
    allow_pickle: the file may be one of `torch.save`; `torch.load(weights_only=True)` reads it.
    A hub id is `organisation/name`, with `/subfolder` if the VAE lies deeper. A local folder wins over a hub id of the
    same name. `UsageError` when there is no such VAE, its configuration is broken or its weights are pickled.
    """
    found = _located(spec, of, allow_pickle)
    if of is not None and found.found is None:
        raise UsageError(f"VAE '{spec}' has a configuration, which says what model space is: leave --vae-of out")
    return found


def _located(spec: str, of: str | None, allow_pickle: bool) -> VaeSource:
    if spec == BUILTIN:
        return read_folder(BUILTIN, Path(builtin.__file__).parent)
    path = Path(os.path.expanduser(spec))
    if spec and path.is_dir():
        found = None if has_config(path) else read_alone(spec, path, of)
        return replace(found or read_folder(spec, path), path=os.path.abspath(path))
    if is_pickled(path) and path.exists():
        if not allow_pickle:
            raise UsageError(
                f"VAE '{spec}' is a pickled file, which another program may have made to run code; save its tensors as "
                "safetensors, or pass --allow-pickle where the command has it: then plain tensors in it are read as "
                "data, and nothing is run"
            )
        return replace(read_file(spec, path, of), path=os.path.abspath(path))
    if path.is_file():
        if path.suffix not in SAFETENSORS:
            raise UsageError(f"VAE '{spec}' is a file, but no safetensors ({', '.join(SAFETENSORS)})")
        return replace(read_beside(spec, path) or read_file(spec, path, of), path=os.path.abspath(path))
    if not hub.is_hub_id(spec):
        raise UsageError(
            f"no VAE '{spec}': no such folder or file (give '{BUILTIN}', a diffusers folder, a safetensors file, "
            "or a hub id org/name)"
        )
    return read_folder(spec, hub.download(spec))


def load_weights(source: VaeSource, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Stored tensors by name (None: all), on the CPU, in their stored types, without importing diffusers.

    Names that are not stored are left out. They are those of the module's `state_dict` if
    `source.keys_are_current`. Of a checkpoint, the VAE's alone are read. `UsageError` names a damaged file.
    """
    weights: dict[str, Tensor] = {}
    for number, path in enumerate(source.weight_files) if names is None or names else ():
        with open_weights(path) as file:
            weights |= _read(source, file, names, number)
    return weights


def _read(
    source: VaeSource, file: WeightsFile, names: Collection[str] | None, number: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Tensors of the module out of an open file, in the order of their names. number: of the file."""
    pieces = None if source.found is None else {k: p for k, p in source.found.pieces.items() if p.file == number}
    there = file.names() if pieces is None else pieces.keys()
    for name in sorted(there if names is None else set(names) & set(there)):
        if pieces is None:
            yield name, file.whole(name)
        else:
            yield name, pieces[name].read(file)


def values_of(source: VaeSource) -> tuple[str, ...]:
    """Checksums of its values, whatever file, names and type they are stored in (see ``values_checksum``).

    Kept in the cache: the first time costs 2 s for SDXL's 319 MiB on two busy cores. `UsageError` names a damaged file.
    """

    def compute() -> str:
        if len(source.weight_files) > 1:
            names = sorted(source.tensors)
            return ",".join(values_checksums((name, load_weights(source, [name])[name]) for name in names))
        with open_weights(source.weight_files[0]) as file:
            return ",".join(values_checksums(_read(source, file, None)))

    if len(source.weight_files) > 1:  # shards: no one file stands for them
        return tuple(compute().split(","))
    what = "-values" + hashlib.sha256(f"{source.class_name} {source.found is None}".encode()).hexdigest()[:8]
    try:
        return tuple(remembered(source.weight_files[0], what, compute).split(","))
    except OSError as error:
        raise UsageError(f"cannot read the weights of VAE '{source.id}': {error}") from error


def load_module(source: VaeSource, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> nn.Module:
    """Build the module, of diffusers or our SeedVR2VAE, and load its weights, cast once to `dtype` (None: as stored).

    For inference only. `UsageError` when diffusers has no such autoencoder, the configuration does not fit it, or a
    weight is missing or of another shape.
    """
    if source.class_name == checkpoint.CLASS_NAME:
        return _load_alone(source, dtype or source.stored_dtype, device)
    if source.found is not None:
        weights = {name: _cast(value, dtype or source.stored_dtype) for name, value in load_weights(source).items()}
        module = filled_module(source.class_name, source.config, weights, source.lacks)
        return module.to(device).eval().requires_grad_(False)
    import diffusers
    from diffusers.models import autoencoders
    from diffusers.utils import is_accelerate_available

    cls = getattr(autoencoders, source.class_name, None)
    where = source.folder / "config.json"
    if cls is None:
        known = "is not an autoencoder" if hasattr(diffusers, source.class_name) else "is unknown to diffusers"
        raise UsageError(f"'{where}': class '{source.class_name}' {known} {diffusers.__version__}")
    try:
        with bounded_build(source.tensors, str(where)):
            module, info = cls.from_pretrained(
                source.folder,
                torch_dtype=dtype or source.stored_dtype,
                variant=source.variant,
                use_safetensors=True,
                local_files_only=True,
                low_cpu_mem_usage=is_accelerate_available(),
                output_loading_info=True,
            )
    except UsageError:
        raise
    except Exception as error:  # whatever a broken configuration makes a constructor do, it is the VAE that is bad
        lines = str(error).strip().splitlines() or [""]
        raise UsageError(
            f"cannot load {source.class_name} from '{source.folder}': diffusers fails with its {where.name} and "
            f"weights ({type(error).__name__}: {lines[0]})"
        ) from error
    for kind in ("missing", "mismatched"):
        if names := sorted(map(str, info[f"{kind}_keys"])):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UsageError(f"the weights in '{source.folder}' do not fit {where.name}: {kind} {names[0]}{more}")
    return module.to(device).eval().requires_grad_(False)


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _load_alone(source: VaeSource, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """SeedVR2's VAE; `UsageError` if its files do not hold it whole."""
    config = checkpoint.config_of(source.tensors, source.folder)
    if config is None:
        raise UsageError(f"the weights in '{source.folder}' are not those of SeedVR2's VAE")
    weights = {name: value.to(device, dtype) for name, value in load_weights(source).items()}
    return checkpoint.build(config, weights).eval().requires_grad_(False)
