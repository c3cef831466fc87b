"""``tvae inspect``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvae.cli import options
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import printable, reporting, say, tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tvae.pipeline.media.sandbox import SandboxMode
    from tvae.pipeline.models.source import VaeSource
    from tvae.pipeline.stores import RemoteFile

__all__ = ["inspect"]

Things = Annotated[
    list[str],
    typer.Argument(
        metavar="THING...", help="Latents, images, videos, VAEs (files, folders or URLs of files), or builtin."
    ),
]


def inspect(
    things: Things,
    max_megapixels: options.MaxMegapixels = None,
    sandbox: options.Sandbox = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Say what a file or folder is (latents, an image, a video, a VAE, a cache): first the main facts, then all."""
    with reporting(verbose, json, quiet=quiet):
        from contextlib import nullcontext
        from pathlib import Path

        from tvae.cli import arguments
        from tvae.cli.summary import summary
        from tvae.cli.table import emit, lines
        from tvae.pipeline.errors import InputError, UsageError

        remote = _remote_files(things)
        for thing in things:
            if thing != "builtin" and thing not in remote and not Path(thing).exists():
                raise UsageError(f"{thing} does not exist")
        failed = False
        for thing in things:
            try:
                with nullcontext(thing) if thing not in remote else _copied(remote[thing]) as here:
                    kind, values = _look(here, arguments.pixel_limit(max_megapixels), sandbox)
                if thing in remote:
                    thing = remote[thing].place.shown  # without what is secret of it
                    values = {name: thing if value == here else value for name, value in values.items()}
            except InputError as error:
                thing = remote[thing].place.shown if thing in remote else thing
                say(str(error) if thing in str(error) else f"{thing}: {error}")
                failed = True
                continue
            if json:
                emit(kind, values, as_json=True)
                continue
            first, *more = summary(kind, values)
            told = [f"{thing}: {first}", *more, "details", *lines(values, "  ")]
            tell("\n".join(map(printable, told)))
        if failed:
            raise typer.Exit(ExitCode.SOME_FAILED)


def _remote_files(things: Sequence[str]) -> dict[str, RemoteFile]:
    """Those that are URLs; one that leads to nothing is told before anything is looked at."""
    from tvae.pipeline.stores import is_url

    if not any(map(is_url, things)):
        return {}
    from tvae.pipeline.batch.looked_at import remote_file

    return {thing: remote_file(thing) for thing in things if is_url(thing)}


@contextmanager
def _copied(file: RemoteFile) -> Iterator[str]:
    from tvae.pipeline.batch.looked_at import fetched

    with fetched(file) as copy:
        yield str(copy)


def _look(thing: str, max_pixels: int, mode: SandboxMode) -> tuple[str, dict[str, Any]]:
    """Its kind and a description."""
    from pathlib import Path

    from tvae.pipeline import latents
    from tvae.pipeline.errors import InputError, UsageError
    from tvae.pipeline.latents.foreign import SUFFIXES
    from tvae.pipeline.latents.tensor_file import is_ours
    from tvae.pipeline.media.sandbox import Sandbox
    from tvae.pipeline.models.load import locate_vae
    from tvae.pipeline.models.weights_file import is_weights
    from tvae.pipeline.models.without_config import SeveralVaes

    path = Path(thing)
    if thing == "builtin" or (path.is_dir() and _is_vae_folder(path)):
        return "vae", _describe_vae(locate_vae(thing))
    named_so = (path.suffix.lower() in SUFFIXES or is_weights(path)) and path.is_file()
    if latents.is_latents(path) or path.is_dir() or named_so:
        try:
            return "latents", _describe_latents(path)
        except InputError as error:
            try:  # the weights of a VAE that are published without a configuration
                return "vae", _describe_vae(locate_vae(thing, allow_pickle=True))
            except UsageError as reason:
                no_vae, several = str(reason), isinstance(reason, SeveralVaes)
            if path.is_dir() and not latents.is_latents(path):
                if caches := _describe_caches(path):
                    return "caches", {"path": str(path), "caches": caches}
                if several:
                    raise InputError(no_vae) from error
                raise InputError(
                    f"{thing} is a folder without latents of a video, a VAE or a cache; name a file in it"
                ) from error
            if named_so and not is_ours(path):
                return "tensors", _describe_tensors(path) | {"no_vae": no_vae}
            raise
    with Sandbox(mode) as sandbox, sandbox.open_reader(path, max_pixels) as reader:
        return "media", {**reader.info.to_json(), "bytes": path.stat().st_size}


def _describe_latents(path: Path) -> dict[str, Any]:
    """The metadata, and whether all of the source is there: one file of a clip's folder can be looked at, too."""
    from tvae.pipeline import latents

    reader = latents.open_latents(path)
    return {"complete": reader.meta.kind == "image" or reader.path.is_dir(), **reader.summary()}


def _describe_tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file that another program wrote."""
    from tvae.pipeline.latents.foreign import specs_in

    specs = {name: {"shape": [*spec.shape], "dtype": spec.dtype} for name, spec in specs_in(path).items()}
    return {"tensors": specs, "bytes": path.stat().st_size}


def _describe_caches(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each trainer, architecture, VAE and resolution of the caches in a folder.

    A row counts sources (of shards: samples), files and bytes, and has the options that all of them share. Records that
    cannot be read are left to ``tvae verify``.
    """
    from tvae.pipeline.caches.record import read_record, record_paths
    from tvae.pipeline.caches.webdataset import ShardRecord, read_shard_record, shard_record_places
    from tvae.pipeline.errors import InputError

    rows: dict[str, dict[str, Any]] = {}
    for places, read in ((record_paths(folder), read_record), (shard_record_places(folder), read_shard_record)):
        for place in places:
            try:
                record = read(place)
            except InputError:
                continue
            files = (record.file,) if isinstance(record, ShardRecord) else record.files
            size = record.options.get("size")
            is_size = isinstance(size, list) and len(size) == 2 and all(type(side) is int for side in size)
            alike: dict[str, Any] = {
                "trainer": record.trainer,
                "architecture": record.architecture,
                "vae": {name: getattr(record.vae, name) for name in ("id", "class_name", "weights_sha256")},
                "resolution": size if is_size else None,
            }
            new = {**alike, "options": record.options, "sources": 0, "files": 0, "bytes": 0}
            row = rows.setdefault(repr(alike), new)
            row["options"] = {name: one for name, one in row["options"].items() if record.options.get(name) == one}
            row["sources"] += len(record.samples) if isinstance(record, ShardRecord) else 1
            row["files"] += len(files)
            row["bytes"] += sum(file.bytes for file in files)
    return [*rows.values()]


def _is_vae_folder(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "model_index.json", "vae/config.json"))


def _describe_vae(source: VaeSource) -> dict[str, Any]:
    """What is known without building the model."""
    from dataclasses import asdict
    from math import prod

    from tvae.pipeline.files.pickled_tensors import is_pickled
    from tvae.pipeline.models.families import FAMILIES
    from tvae.pipeline.models.geometry import geometry_of
    from tvae.pipeline.models.load import load_module
    from tvae.pipeline.models.other_classes import why_other
    from tvae.pipeline.models.published import published_name
    from tvae.pipeline.models.space import space_of

    space, family = space_of(source), FAMILIES.get(source.class_name)
    return {
        "id": source.id,
        "class": source.class_name,
        "name": published_name(source.weights_sha256),
        "note": family.note if family else None,
        "not_used": why_other(source.class_name),
        "geometry": asdict(geometry_of(source.class_name, source.config, lambda: load_module(source)))
        if family
        else None,
        "bytes": sum(file.stat().st_size for file in source.weight_files),
        "folder": str(source.folder),
        "weights": [path.name for path in source.weight_files],
        "pickled": any(map(is_pickled, source.weight_files)),
        "weights_sha256": source.weights_sha256,
        "config_sha256": source.config_sha256,
        "dtype": str(source.stored_dtype).removeprefix("torch."),
        "parameters": sum(prod(spec.shape) for spec in source.tensors.values()),
        "space": space.to_json(),
        "found": source.found.describe() if source.found else None,
        "lacks": dict(source.lacks),
        "config": {key: value for key, value in source.config.items() if not key.startswith("_")},
    }
