"""Which images and videos are read, and at which size."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = ["Align", "Fit", "MaxMegapixels", "Sandbox", "Size"]

PICTURE = "Picture"

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
