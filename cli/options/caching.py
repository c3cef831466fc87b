"""How a trainer is set whose cache is written or read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = ["CACHE", "Arch", "Buckets", "CachePosterior", "NoUpscale", "TargetFps"]

CACHE = "Cache"

Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="NAME",
        help="The diffusion model, as the trainer calls it: sdxl, flux, wan and so on; for shards raw or model, the "
        "space of the latents.",
        show_default="the only one that the VAE suits",
        rich_help_panel=CACHE,
    ),
]
Buckets = Annotated[
    str,
    typer.Option(
        "--buckets",
        metavar="on|off|MIN-MAX[/STEP]",
        help="Sort images into sizes near their own proportions, as the trainer does it; smallest and largest side and "
        "their step as the trainer is set to, such as 256-2048/64.",
        rich_help_panel=CACHE,
    ),
]
NoUpscale = Annotated[
    bool, typer.Option("--no-upscale", help="Do not enlarge images below the resolution.", rich_help_panel=CACHE)
]
CachePosterior = Annotated[
    Literal["mean", "sample"] | None,
    typer.Option(
        "--posterior",
        help="Mean of the encoder's distribution, or a sample of it.",
        show_default="what the trainer stores",
        rich_help_panel=CACHE,
    ),
]
TargetFps = Annotated[
    float | None,
    typer.Option(
        "--target-fps",
        metavar="N",
        help="Leave out frames of faster videos until so many a second are left.",
        show_default="all frames",
        rich_help_panel=CACHE,
    ),
]
