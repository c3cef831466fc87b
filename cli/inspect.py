"""``tvae inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvae.cli import options
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import reporting, say

if TYPE_CHECKING:
    from tvae.pipeline.models.source import VaeSource

__all__ = ["inspect"]

Things = Annotated[
    list[str],
    typer.Argument(metavar="THING...", help="Latents, images, videos, VAEs (files or folders), or builtin."),
]


def inspect(
    things: Things,
    max_megapixels: options.MaxMegapixels = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """What a file or folder is: latents, an image, a video or a VAE."""
    with reporting(verbose, json):
        from pathlib import Path

        from tvae.cli import arguments
        from tvae.cli.table import emit
        from tvae.pipeline.errors import InputError, UsageError

        for thing in things:
            if thing != "builtin" and not Path(thing).exists():
                raise UsageError(f"{thing} does not exist")
        failed = False
        for thing in things:
            try:
                kind, values = _look(thing, arguments.pixel_limit(max_megapixels))
            except InputError as error:
                say(str(error) if thing in str(error) else f"{thing}: {error}")
                failed = True
                continue
            if not json and len(things) > 1:
                print(f"{thing}:")
            emit(kind, values, json)
        if failed:
            raise typer.Exit(ExitCode.SOME_FAILED)


def _look(thing: str, max_pixels: int) -> tuple[str, dict[str, Any]]:
    """Its kind and a description."""
    from pathlib import Path

    from tvae.pipeline import latents, media
    from tvae.pipeline.errors import InputError, UsageError
    from tvae.pipeline.models.load import locate_vae

    path = Path(thing)
    if thing == "builtin" or (path.is_dir() and _is_vae_folder(path)):
        return "vae", _describe_vae(locate_vae(thing))
    if latents.is_latents(path) or path.is_dir():
        try:
            return "latents", latents.open_latents(path).summary()
        except InputError as error:
            try:  # the weights of a VAE that are published without a configuration
                return "vae", _describe_vae(locate_vae(thing))
            except UsageError:
                pass
            if path.is_dir() and not latents.is_latents(path):
                raise InputError(f"{thing} is a folder without latents of a video or a VAE") from error
            raise
    return "media", media.probe(path, max_pixels).to_json()


def _is_vae_folder(folder: Any) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "model_index.json", "vae/config.json"))


def _describe_vae(source: VaeSource) -> dict[str, Any]:
    """What is known without building the model."""
    from math import prod

    from tvae.pipeline.models.space import space_of

    space = space_of(source)
    return {
        "id": source.id,
        "class": source.class_name,
        "folder": str(source.folder),
        "weights": [path.name for path in source.weight_files],
        "weights_sha256": source.weights_sha256,
        "config_sha256": source.config_sha256,
        "dtype": str(source.stored_dtype).removeprefix("torch."),
        "parameters": sum(prod(spec.shape) for spec in source.tensors.values()),
        "space": space.to_json(),
        "config": {key: value for key, value in source.config.items() if not key.startswith("_")},
    }
