"""Every flag that more than one command takes, declared once. Light: the app's ``--help`` imports it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tvae.cli import completion

FILES = "Files"
MODEL = "Model"
PICTURE = "Picture"
LATENTS = "Latents"
WRITING = "Output images and videos"
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
        help="Latents: .safetensors files, .latents folders, folders and patterns of them. With --vae and --space also "
        "those of other programs: .latent (ComfyUI), .safetensors, .npz, .npy, .pt.",
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
    bool,
    typer.Option("--recursive", help="Include subfolders, and make the same ones under -o.", rich_help_panel=FILES),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.", rich_help_panel=FILES)]
NoClobber = Annotated[
    bool,
    typer.Option("--no-clobber", help="Keep outputs that exist, even outdated ones.", rich_help_panel=FILES),
]
PrintConfig = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Print this as a job file for tvae batch, and do nothing.",
        rich_help_panel=FILES,
    ),
]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Only say what would be done.", rich_help_panel=FILES)]

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
        help="Take a .pt, .pth, .ckpt or .bin file as the VAE. Plain tensors in it are read as data; nothing in it is "
        "run, and other objects are left out.",
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

Batch = Annotated[
    str,
    typer.Option(
        "--batch",
        metavar="N|auto",
        help="Pictures of one size that share a call of an image VAE; auto: as many as pays.",
        rich_help_panel=MODEL,
    ),
]
MaxMegapixels = Annotated[
    int | None,
    typer.Option(
        "--max-megapixels",
        metavar="N",
        min=1,
        help="Refuse larger images, because a small file can claim any size.",
        show_default="1073",
        rich_help_panel=PICTURE,
    ),
]
Sandbox = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(
        "--sandbox",
        help="Open files in processes of their own, so that a decoder that crashes or hangs fails its file alone: all "
        "images, videos and sound beside latents, none, or (auto) those whose structure looks damaged.",
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
        help="How to resize to --size: fit inside it, fill it and crop the rest, or stretch to it.",
        rich_help_panel=PICTURE,
    ),
]
Align = Annotated[
    Literal["pad", "crop", "error"],
    typer.Option(
        "--align",
        help="For sizes and clip lengths that the VAE cannot represent: pad by repeating the edge and the last frame "
        "(decode removes the padding), crop, or refuse.",
        rich_help_panel=PICTURE,
    ),
]
Posterior = Annotated[
    Literal["mean", "sample", "moments"],
    typer.Option(
        "--posterior",
        help="What to store of the encoder's distribution: its mean, a random sample, or mean and log variance.",
        rich_help_panel=LATENTS,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Seed of --posterior sample, for each input.", rich_help_panel=LATENTS)
]
Space = Annotated[
    Literal["raw", "model"],
    typer.Option(
        "--space",
        help="Store latents as the encoder gives them (raw), or scaled for the diffusion model (model).",
        rich_help_panel=LATENTS,
    ),
]
AllowOtherVae = Annotated[
    bool,
    typer.Option(
        "--allow-other-vae",
        help="Decode with the VAE of --vae even if another one of the same geometry made the latents (a finetuned "
        "decoder).",
        rich_help_panel=LATENTS,
    ),
]
ForeignSpace = Annotated[
    Literal["raw", "model"] | None,
    typer.Option(
        "--space",
        help="Of latents that another program wrote: as the encoder gives them (raw), or scaled for the diffusion "
        "model (model). Needs --vae.",
        show_default="that of tvae's own latents, which say it",
        rich_help_panel=LATENTS,
    ),
]
ForeignKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="NAME",
        help="Name of the tensor in another program's file.",
        show_default="latents, latent, samples, or the only one",
        rich_help_panel=LATENTS,
    ),
]
TokensSize = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="WxH",
        help="Of the picture, where another program's latents are rows of tokens (Flux).",
        show_default=False,
        rich_help_panel=LATENTS,
    ),
]
KeepAudio = Annotated[
    Literal["copy", "none"],
    typer.Option(
        "--audio",
        help="Copy sound, subtitles and all other streams into the folder of latents, or leave them out.",
        rich_help_panel=LATENTS,
    ),
]

Codec = Annotated[
    str | None,
    typer.Option(
        "--codec",
        metavar="NAME",
        help="FFmpeg's name of the video encoder.",
        show_default="libx264",
        rich_help_panel=WRITING,
    ),
]
Crf = Annotated[
    float | None,
    typer.Option(
        "--crf", metavar="N", help="Constant quality; lower is better.", show_default="18", rich_help_panel=WRITING
    ),
]
PixFmt = Annotated[
    str | None,
    typer.Option(
        "--pix-fmt",
        metavar="NAME",
        help="FFmpeg's name of the pixel format.",
        show_default="yuv420p",
        rich_help_panel=WRITING,
    ),
]
Enc = Annotated[
    list[str] | None,
    typer.Option(
        "--enc", metavar="KEY=VALUE", help="An option of the encoder; may be repeated.", rich_help_panel=WRITING
    ),
]
Fps = Annotated[
    str | None,
    typer.Option(
        "--fps",
        metavar="N[/D]",
        help="Constant frame rate; no frame is dropped or repeated.",
        show_default="the times of the source's frames",
        rich_help_panel=WRITING,
    ),
]
Audio = Annotated[
    Literal["copy", "none"],
    typer.Option(
        "--audio",
        help="Copy sound, subtitles and all other streams unchanged, or leave them out.",
        rich_help_panel=WRITING,
    ),
]
Color = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar="MATRIX[:RANGE]",
        help="Colour matrix bt709, bt601 or bt2020, and range tv or pc.",
        show_default="the source's",
        rich_help_panel=WRITING,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line on stdout.", rich_help_panel=REPORT)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.", rich_help_panel=REPORT)]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print tracebacks and logs.", rich_help_panel=REPORT)]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bars.", rich_help_panel=REPORT)]
