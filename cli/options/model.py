"""The VAE, and how and where it computes."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tvae.cli import completion

__all__ = [
    "AllowPickle",
    "AllowWhole",
    "Batch",
    "Config",
    "Device",
    "Devices",
    "Dtype",
    "LatentsVae",
    "Preset",
    "Spill",
    "Split",
    "Strip",
    "Threads",
    "Vae",
    "VaeOf",
    "Vram",
    "WaitForKernels",
]

MODEL = "Model"

Vae = Annotated[
    str | None,
    typer.Option(
        "--vae",
        metavar="ID|PATH|builtin",
        help="A diffusers folder, a safetensors file, a hub id (which may download), or builtin.",
        show_default="builtin",
        autocompletion=completion.vaes,
        rich_help_panel=MODEL,
    ),
]
VaeOf = Annotated[
    str | None,
    typer.Option(
        "--vae-of",
        metavar="NAME",
        help="The model that a single file's VAE is of (sd1, sdxl, flux, taew2.1, …), where its tensors do not tell "
        "what model space is, or which of two models it is. tvae models lists the names.",
        show_default="what the file tells",
        autocompletion=completion.kin,
        rich_help_panel=MODEL,
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Take a .pt, .pth, .ckpt or .bin file as the VAE. PyTorch reads plain tensors in it and runs nothing; a "
        "file with other objects is refused.",
        rich_help_panel=MODEL,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="NAME",
        help="Random weights in the shape of a public VAE, instead of --vae: sdxl, wan21 and others of tvae models.",
        show_default=False,
        autocompletion=completion.configs,
        rich_help_panel=MODEL,
    ),
]
LatentsVae = Annotated[
    str | None,
    typer.Option(
        "--vae",
        metavar="ID|PATH|builtin",
        help="A diffusers folder, a safetensors file, a hub id (which may download), or builtin.",
        show_default="the one that the latents name",
        autocompletion=completion.vaes,
        rich_help_panel=MODEL,
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME|auto",
        help="Settings for a kind of device; see tvae preset list.",
        autocompletion=completion.presets,
        rich_help_panel=MODEL,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="float32|bfloat16|float16",
        help="Number type to compute in.",
        show_default="the preset's",
        autocompletion=completion.dtypes,
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Any torch device: cuda, cuda:1, mps, xpu, cpu.",
        show_default="the fastest one here",
        autocompletion=completion.devices,
        rich_help_panel=MODEL,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="N|DEVICE,...",
        help="Several devices that share the work: how many, or which, such as cuda:0,cuda:2. --vram is for each.",
        show_default="one",
        rich_help_panel=MODEL,
    ),
]
Split = Annotated[
    Literal["auto", "items", "rows"],
    typer.Option(
        "--split",
        help="What several devices share: whole items, the rows of each picture or clip, or (auto) rows where there "
        "are fewer items than devices and it is sooner done so. -v says why.",
        rich_help_panel=MODEL,
    ),
]
Strip = Annotated[
    int | None,
    typer.Option(
        "--strip",
        metavar="N",
        help="Height of a strip in latent rows.",
        show_default="the preset's",
        rich_help_panel=MODEL,
    ),
]
Vram = Annotated[
    str | None,
    typer.Option(
        "--vram",
        metavar="SIZE",
        help="Memory budget, such as 8GiB: for all that the process holds on the device, or on a CPU in memory.",
        show_default="the preset's share of what is free",
        rich_help_panel=MODEL,
    ),
]
Spill = Annotated[
    str | None,
    typer.Option(
        "--spill",
        metavar="FOLDER",
        help="Folder for data that does not fit into memory during a run.",
        show_default="the system's folder for temporary files",
        rich_help_panel=MODEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Most threads that compute on a CPU; small pictures take fewer.",
        show_default="one for each core",
        rich_help_panel=MODEL,
    ),
]
AllowWhole = Annotated[
    bool,
    typer.Option(
        "--allow-whole",
        help="Run operations that cannot be cut into strips on the whole picture: exact, but takes more memory.",
        rich_help_panel=MODEL,
    ),
]
WaitForKernels = Annotated[
    bool,
    typer.Option(
        "--wait-for-kernels",
        help="Compute nothing before a GPU's kernels are built, which takes seconds the first time. Without it, "
        "PyTorch's own operations compute pictures until then, just as exactly.",
        rich_help_panel=MODEL,
    ),
]

Batch = Annotated[
    str,
    typer.Option(
        "--batch",
        metavar="N|auto",
        help="Pictures of one size that share a call of an image VAE; auto: as many as pays.",
        rich_help_panel=MODEL,
    ),
]
