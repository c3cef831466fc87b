"""``tvae plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tvae.cli import options
from tvae.cli.reporting import printable, reporting, say, say_builtin, tell

if TYPE_CHECKING:
    from tvae.pipeline.jobs.input_shape import Extent
    from tvae.pipeline.media.sandbox import SandboxMode
    from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["plan"]

Input = Annotated[
    str | None, typer.Argument(metavar="INPUT", help="An image, a video, or latents.", show_default=False)
]
Shape = Annotated[
    str | None,
    typer.Option(
        "--shape", metavar="WxH[xT]", help="Pixels of the picture, and frames of the clip, instead of an input."
    ),
]
Asked = Literal["encode", "decode", "both"]
Side = Annotated[Asked, typer.Option("--side", help="What to plan.")]


def plan(
    input: Input = None,
    shape: Shape = None,
    side: Side = "both",
    vae: options.Vae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    preset: options.Preset = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    devices: options.Devices = None,
    strip: options.Strip = None,
    vram: options.Vram = None,
    spill: options.Spill = None,
    allow_whole: options.AllowWhole = False,
    max_megapixels: options.MaxMegapixels = None,
    sandbox: options.Sandbox = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Say whether a run would fit into memory, how long it would take, and what limits it.

    Computes nothing. With -v it also lists segments, strips and buffers. With --devices it says which rows of one
    picture or clip each device would compute, and what comes to it from the others.
    """
    with reporting(verbose, json, quiet=quiet):
        from tvae.cli import arguments
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.jobs.input_shape import Extent

        if (input is None) == (shape is None):
            raise UsageError("name either an INPUT or a --shape")
        named, wanted = (
            (None, Extent(*arguments.parse_shape(shape)))
            if shape
            else _shape_of(input or "", arguments.pixel_limit(max_megapixels), sandbox, device, vram)
        )
        of_model: dict[str, Any] = {
            "vae_of": vae_of,
            "allow_pickle": allow_pickle,
            "preset": preset,
            "dtype": dtype,
            "strip": strip,
            "vram": vram,
            "spill": spill,
            "allow_whole": allow_whole,
        }
        if devices is not None:
            _plan_shared(vae or named or "builtin", wanted, side, device, devices, of_model, verbose, json, quiet)
        else:
            _plan_alone(vae or named or "builtin", wanted, side, device, of_model, verbose, json, quiet)
        if vae is None and named is None and not (json or quiet):
            say_builtin()


def _plan_alone(
    vae: str,
    wanted: Extent,
    side: Asked,
    device: str | None,
    of_model: dict[str, Any],
    verbose: bool,
    json: bool,
    quiet: bool,
) -> None:
    from tvae.cli.table import emit
    from tvae.cli.verdict import LEGEND, verdict
    from tvae.pipeline.jobs.input_shape import input_shape
    from tvae.pipeline.session.model import open_model

    model = open_model(vae, device=device, **of_model)
    for one in _sides(side, model.info, silent=json or quiet):
        found = model.plan(input_shape(model.info, wanted, one), one)
        if json:
            emit("plan", {"side": one, **found.to_json()}, as_json=True)
            continue
        for line in verdict(found, model):
            tell(printable(line))
        if verbose:
            tell(str(found))
    if verbose and not json:
        tell(LEGEND)


def _sides(asked: Asked, info: ModelInfo, *, silent: bool) -> list[Literal["encode", "decode"]]:
    """Of both those that the VAE has weights for, and a line on the other."""
    if asked != "both":
        return [asked]
    if not silent:
        for why in info.lacks.values():
            say(why)
    both: tuple[Literal["encode"], Literal["decode"]] = ("encode", "decode")
    return [side for side in both if side not in info.lacks]


def _plan_shared(
    vae: str,
    wanted: Extent,
    side: Asked,
    device: str | None,
    devices: str,
    of_model: dict[str, Any],
    verbose: bool,
    json: bool,
    quiet: bool,
) -> None:
    from functools import partial

    from tvae.cli.table import emit
    from tvae.cli.verdict import LEGEND, share_of_rows, shared_verdict
    from tvae.pipeline.errors import UsageError
    from tvae.pipeline.jobs.devices.names import check_alike, present_devices
    from tvae.pipeline.jobs.input_shape import input_shape
    from tvae.pipeline.session.model import open_model
    from tvae.pipeline.session.planned_peers import PlannedPeers
    from tvae.pipeline.session.shared_model import SharedModel
    from tvae.pipeline.session.sharing_pays import expected

    if device is not None:
        raise UsageError("--device and --devices cannot be used together")
    names = present_devices(devices)
    check_alike(names)
    ranks = [PlannedPeers(rank, len(names)) for rank in range(len(names))]
    models = [
        open_model(vae, device=name, kind=partial(SharedModel, peers=peers), **of_model)
        for name, peers in zip(names, ranks, strict=True)
    ]
    single = open_model(vae, device=names[0], **of_model)
    for one in _sides(side, single.info, silent=json or quiet):
        shape = input_shape(single.info, wanted, one)
        found = [model.plan(shape, one) for model in models]
        frames = wanted.frames if single.info.temporal_factor is None else 1  # one by one
        gain = expected([(partial(single.plan, shape, one), partial(models[0].plan, shape, one))], len(names), frames)
        split = "rows" if gain.pays else "items"
        if not json:
            tell(printable(shared_verdict(found)))
            tell(printable(f"  time     {gain}; --split auto: {split}"))
        for name, plan in zip(names, found, strict=True):
            if json:
                of_split = {"split": split, "seconds_alone": gain.alone, "seconds_together": gain.together}
                emit("plan", {"side": one, "device": name, **plan.to_json(), **of_split}, as_json=True)
                continue
            tell(printable(share_of_rows(name, plan)))
            if verbose:
                tell(str(plan))
    if verbose and not json:
        tell(LEGEND)


def _shape_of(
    name: str, max_pixels: int, mode: SandboxMode, device: str | None, vram: str | None
) -> tuple[str | None, Extent]:
    """The VAE that latents name, and the size of the padded picture or clip."""
    from pathlib import Path

    from tvae.pipeline import latents
    from tvae.pipeline.device import pick_device
    from tvae.pipeline.errors import UsageError
    from tvae.pipeline.jobs.input_shape import Extent
    from tvae.pipeline.jobs.remote.refusals import refuse_urls
    from tvae.pipeline.media.sandbox import Sandbox
    from tvae.pipeline.memory.amount import parse_size
    from tvae.pipeline.memory.limits import reading_room

    refuse_urls([name], "tvae plan")
    path = Path(name)
    if not path.exists():
        raise UsageError(f"{name} does not exist")
    if latents.is_latents(path):
        reader = latents.open_latents(path)
        width, height = reader.meta.geometry.padded_size
        return reader.meta.vae.place, Extent(height, width, reader.frames)
    memory = reading_room(pick_device(device), None if vram is None else parse_size(vram))
    with Sandbox(mode) as sandbox, sandbox.open_reader(path, max_pixels, memory=memory) as opened:
        info = opened.info
    return None, Extent(info.height, info.width, info.frames or 1)
