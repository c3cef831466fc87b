"""Every flag that more than one command takes, declared once. Light: the app's ``--help`` imports it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tvae.cli import completion

FILES = "Files"
MODEL = "Model"
PICTURE = "Picture"
LATENTS = "Latents"
WRITING = "Written pictures"
REPORT = "Report"

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...", help="Files, folders and patterns (*, ?, **).", show_default=False, rich_help_panel=FILES
    ),
]
LatentInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...",
        help="Latents: .safetensors files, .latents folders, folders and patterns of them.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="Folder for the results, or, for one input, their file. Default: the current folder.",
        rich_help_panel=FILES,
    ),
]
BatchFile = Annotated[
    str | None,
    typer.Option(
        "-a",
        "--batch-file",
        metavar="FILE|-",
        help="Read more inputs from a file, one a line (-: standard input).",
        rich_help_panel=FILES,
    ),
]
Recursive = Annotated[
    bool, typer.Option("--recursive", help="Go into subfolders; -o mirrors them.", rich_help_panel=FILES)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Make everything anew.", rich_help_panel=FILES)]
NoClobber = Annotated[
    bool,
    typer.Option("--no-clobber", help="Leave every output that exists, even an outdated one.", rich_help_panel=FILES),
]
DryRun = Annotated[
    bool, typer.Option("-n", "--dry-run", help="Say what would be done and do nothing.", rich_help_panel=FILES)
]

Vae = Annotated[
    str | None,
    typer.Option(
        "--vae",
        metavar="ID|PATH|builtin",
        help="A diffusers folder, SeedVR2's weights, a hub id (only then the network is used), or builtin.",
        show_default="builtin",
        autocompletion=completion.vaes,
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
        help="A diffusers folder, SeedVR2's weights, a hub id (only then the network is used), or builtin.",
        show_default="what the latents name",
        autocompletion=completion.vaes,
        rich_help_panel=MODEL,
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME|auto",
        help="Settings for a device; see tvae preset.",
        autocompletion=completion.presets,
        rich_help_panel=MODEL,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="float32|bfloat16|float16",
        help="Type of the computation.",
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
        show_default="the best there is",
        autocompletion=completion.devices,
        rich_help_panel=MODEL,
    ),
]
Strip = Annotated[
    int | None,
    typer.Option(
        "--strip", metavar="N", help="Latent rows a strip.", show_default="the preset's", rich_help_panel=MODEL
    ),
]
Vram = Annotated[
    str | None,
    typer.Option(
        "--vram",
        metavar="SIZE",
        help="Memory to keep within, such as 8GiB: of the device, or on a CPU of the process.",
        show_default="the preset's share of what is free",
        rich_help_panel=MODEL,
    ),
]
Spill = Annotated[
    str | None,
    typer.Option(
        "--spill",
        metavar="FOLDER",
        help="Where what does not fit into memory is kept meanwhile.",
        show_default="the system's folder for temporary files",
        rich_help_panel=MODEL,
    ),
]
AllowWhole = Annotated[
    bool,
    typer.Option(
        "--allow-whole",
        help="Run operations the engine has no rule for on the whole picture: exact, but in more memory than strips.",
        rich_help_panel=MODEL,
    ),
]

MaxMegapixels = Annotated[
    int | None,
    typer.Option(
        "--max-megapixels",
        metavar="N",
        min=1,
        help="Refuse larger images: a small file can claim to be any size.",
        show_default="1073",
        rich_help_panel=PICTURE,
    ),
]
Size = Annotated[
    str | None, typer.Option("--size", metavar="WxH", help="Resize to this size first.", rich_help_panel=PICTURE)
]
Fit = Annotated[
    Literal["contain", "cover", "stretch"],
    typer.Option(
        "--fit",
        help="How --size is met: lie inside it, fill it and cut the rest, or ignore proportions.",
        rich_help_panel=PICTURE,
    ),
]
Align = Annotated[
    Literal["pad", "crop", "error"],
    typer.Option(
        "--align",
        help="Sizes and clip lengths the VAE cannot represent: repeat the edge and the last frame (decode takes them "
        "off), cut, or refuse.",
        rich_help_panel=PICTURE,
    ),
]
Posterior = Annotated[
    Literal["mean", "sample", "moments"],
    typer.Option("--posterior", help="What to keep of the encoder's Gaussian.", rich_help_panel=LATENTS),
]
Seed = Annotated[int, typer.Option("--seed", help="For --posterior sample; per input.", rich_help_panel=LATENTS)]
Space = Annotated[
    Literal["raw", "model"],
    typer.Option(
        "--space", help="As the encoder gives them, or as the diffusion model sees them.", rich_help_panel=LATENTS
    ),
]
KeepAudio = Annotated[
    Literal["copy", "none"],
    typer.Option("--audio", help="Keep audio and subtitles beside the latents.", rich_help_panel=LATENTS),
]

Codec = Annotated[
    str | None,
    typer.Option("--codec", metavar="NAME", help="FFmpeg's encoder.", show_default="libx264", rich_help_panel=WRITING),
]
Crf = Annotated[
    float | None,
    typer.Option("--crf", metavar="N", help="Constant quality.", show_default="18", rich_help_panel=WRITING),
]
PixFmt = Annotated[
    str | None,
    typer.Option(
        "--pix-fmt", metavar="NAME", help="FFmpeg's pixel format.", show_default="yuv420p", rich_help_panel=WRITING
    ),
]
Enc = Annotated[
    list[str] | None,
    typer.Option(
        "--enc", metavar="KEY=VALUE", help="An option of the encoder's own; repeatable.", rich_help_panel=WRITING
    ),
]
Fps = Annotated[
    str | None,
    typer.Option(
        "--fps",
        metavar="N[/D]",
        help="Constant frame rate; no frame is dropped or doubled.",
        show_default="each frame's own time",
        rich_help_panel=WRITING,
    ),
]
Audio = Annotated[
    Literal["copy", "none"],
    typer.Option("--audio", help="Copy audio and subtitles untouched.", rich_help_panel=WRITING),
]
Color = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar="MATRIX[:RANGE]",
        help="bt709, bt601 or bt2020; :tv or :pc.",
        show_default="the source's",
        rich_help_panel=WRITING,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.", rich_help_panel=REPORT)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.", rich_help_panel=REPORT)]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Tracebacks and logs.", rich_help_panel=REPORT)]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bars.", rich_help_panel=REPORT)]
