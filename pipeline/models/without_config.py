"""VAEs without a configuration: files of weights that are known by their tensors, each whole or one side alone.

An encoder and a decoder in files of their own are one VAE where their names are the same but for these two words, in
one folder: `taesd_encoder.safetensors` and `taesd_decoder.safetensors`, or both in capitals. Tensors alone do not tell
which go together.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.pickled_tensors import PICKLED
from tvae.pipeline.models.checksum import sha256_of_files
from tvae.pipeline.models.one_side import other_side, part_of
from tvae.pipeline.models.seedvr2 import checkpoint
from tvae.pipeline.models.single_file import both_sides, recognise
from tvae.pipeline.models.source import CONFIG_NAME, VaeSource, pickled_error
from tvae.pipeline.models.weights_file import SAFETENSORS, open_weights, weights_header

__all__ = ["SeveralVaes", "read_alone", "read_file"]


class SeveralVaes(UsageError):
    """A folder without configuration holds more than one VAE."""


def read_file(spec: str, path: Path, of: str | None = None) -> VaeSource:
    """The VAE that a file of weights holds, alone or inside a checkpoint; of one side, with the other side's file.

    `UsageError` when the file is damaged, holds a VAE in part, or none that tvae knows.
    """
    one = _read_one(spec, path, of)
    if one.found is None or one.found.absent is None:
        return one
    absent = one.found.absent
    there, wanted = part_of(other_side(absent)), part_of(absent)
    beside = path.with_name(re.sub(there, lambda found: _as_written(wanted, found[0]), path.name, flags=re.IGNORECASE))
    start = f"VAE '{path}' cannot {absent}: it holds a{'n' * (there == 'encoder')} {there} alone"
    if beside == path:
        return replace(one, lacks={absent: f"{start}; take a file that has the {wanted}, too"})
    if not beside.is_file():
        return replace(one, lacks={absent: f"{start}, and there is no '{beside}' beside it"})
    try:
        second = _read_one(spec, beside, of)
    except UsageError as error:
        return replace(one, lacks={absent: f"{start}, and the file beside it is no {wanted} of it: {error}"})
    found = None if second.found is None else both_sides(one.found, second.found, partial(_same, one, second))
    if found is None:
        return replace(one, lacks={absent: f"{start}, and '{beside}' is no {wanted} of it"})
    files = path, beside
    return VaeSource(spec, found.class_name, found.config, path.parent, files, found=found)


def _as_written(word: str, like: str) -> str:
    """A word in capitals where another one is."""
    return word.upper() if like.isupper() else word.capitalize() if like[0].isupper() else word


def _same(one: VaeSource, other: VaeSource, names: Collection[str]) -> bool:
    if one.found is None or other.found is None or not names:
        return not names
    with open_weights(one.weight_files[0]) as first, open_weights(other.weight_files[0]) as second:
        return all(
            torch.equal(one.found.pieces[name].read(first), other.found.pieces[name].read(second)) for name in names
        )


def _read_one(spec: str, path: Path, of: str | None) -> VaeSource:
    try:
        header = weights_header(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"VAE '{path}' is a file that cannot be read: {error}") from error
    config = checkpoint.config_of(header.tensors, path)
    if config is not None:
        return VaeSource(spec, checkpoint.CLASS_NAME, config, path.parent, (path,))
    try:
        found = recognise(header, path, of, partial(sha256_of_files, [path]))
    except OSError as error:
        raise UsageError(f"VAE '{path}' is a file that cannot be read: {error}") from error
    return VaeSource(spec, found.class_name, found.config, path.parent, (path,), found=found)


def _named(one: VaeSource) -> str:
    side = "".join(f" ({part_of(other_side(side))} alone)" for side in one.lacks)
    return " with ".join(path.name for path in one.weight_files) + side


def read_alone(spec: str, folder: Path, of: str | None) -> VaeSource | None:
    """The VAE that `read_file` knows among the files of a folder without configuration; None if there is none."""
    found: dict[tuple[Path, ...], VaeSource] = {}
    errors: list[UsageError] = []
    files = sorted(path for path in folder.iterdir() if path.name.endswith(SAFETENSORS))
    if not files and any(path.name.endswith(PICKLED) for path in folder.iterdir()):
        raise pickled_error(str(folder))
    for path in files:
        if any(path in known for known in found):
            continue
        try:
            source = read_file(spec, path, of)
        except UsageError as error:  # of no weight if another file is the VAE
            errors.append(error)
        else:
            found[source.weight_files] = source
    if len(found) > 1:
        names, hint = ", ".join(map(_named, found.values())), ""
        if any(one.lacks for one in found.values()):
            hint = " (an encoder and a decoder are one VAE where their names are the same but for these words)"
        raise SeveralVaes(f"'{folder}' holds several VAEs: {names}; name one of these files{hint}")
    if errors and not found:
        raise UsageError(f"VAE '{spec}': there is no '{folder / CONFIG_NAME}', and {errors[0]}")
    return next(iter(found.values()), None)
