"""What is stored of latents, and what those of other programs hold."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = [
    "LATENTS",
    "AllowOtherVae",
    "ForeignKey",
    "ForeignSpace",
    "KeepAlpha",
    "KeepAudio",
    "Posterior",
    "Seed",
    "Space",
    "TokensSize",
]

LATENTS = "Latents"

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
KeepAlpha = Annotated[
    Literal["keep", "drop"],
    typer.Option(
        "--alpha",
        help="Keep the alpha of images beside their latents, for decode, or leave it out.",
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
