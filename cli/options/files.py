"""What a command reads and where its results go."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "BatchFile",
    "DryRun",
    "Inputs",
    "LatentInputs",
    "NoClobber",
    "Output",
    "Overwrite",
    "PrintConfig",
    "Recursive",
    "UrlInputs",
    "UrlOutput",
]

FILES = "Files"

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...", help="Files, folders and patterns (*, ?, **).", show_default=False, rich_help_panel=FILES
    ),
]
UrlInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders and patterns (*, ?, **), or URLs of them: s3://, gs://, hf://; https:// of single files.",
        show_default=False,
        rich_help_panel=FILES,
    ),
]
LatentInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...",
        help="Latents: .safetensors files, .latents folders, folders and patterns of them, or URLs (s3://, gs://, "
        "hf://, https://). With --vae and --space also those of other programs: .latent (ComfyUI), .safetensors, .npz, "
        ".npy, .pt.",
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
UrlOutput = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="Folder for the results, or, for one input, their file; or a URL (s3://, gs://, hf://). Default: the "
        "current folder.",
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
