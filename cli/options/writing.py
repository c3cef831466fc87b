"""How decoded images and videos are written."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = ["Alpha", "Audio", "Codec", "Color", "Crf", "Enc", "Fps", "PixFmt"]

WRITING = "Output images and videos"

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
Alpha = Annotated[
    Literal["keep", "drop"],
    typer.Option(
        "--alpha",
        help="Give images the alpha of their source, where the format has it (PNG, WebP, TIFF), or leave it out.",
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
