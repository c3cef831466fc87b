"""The latents of one image: a single safetensors file, `<input name>.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import check_place, check_readable, write_error
from tvae.pipeline.latents.meta import LatentsMeta, PartRecord
from tvae.pipeline.latents.tensor_file import WrittenTensors, is_ours, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

IMAGE_SUFFIX = ".safetensors"


def write_image_latents(
    path: Path,
    tensors: Mapping[str, Tensor],
    meta: LatentsMeta,
    *,
    repeated: int = 0,
    alpha: str | None = None,
    overwrite: bool = False,
    whole: bool = False,
) -> WrittenTensors:
    """Write [C, h, w] latents under `path` in one step; latents of tvae that are there already are replaced.

    Any other file of that name is the user's: `InputError`, unless `overwrite`. `InputError` also for values
    that are not finite, `OutputError` where it cannot be written, or one that is there cannot be read. Creates the
    folder. `repeated`: see `PartRecord`; `alpha`, `whole`: see `write_tensors`.
    """
    check_image_place(path, overwrite=overwrite)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from error
    return write_tensors(path, tensors, meta, PartRecord(repeated=repeated), alpha=alpha, whole=whole)


def check_image_place(path: Path, *, overwrite: bool) -> None:
    """What `write_image_latents` raises for what is there already."""
    check_place(path)
    if not overwrite and path.exists() and not is_ours(path):
        check_readable(path)
        raise InputError(f"'{path}' exists and is not latents of tvae; move it away, or pass --overwrite")
