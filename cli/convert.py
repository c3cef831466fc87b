"""``tvae convert``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tvae.cli import options
from tvae.cli.reporting import printable, reporting, say, tell

__all__ = ["convert"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="FROM", help="Latents of tvae, or a file of another program: .latent, .safetensors, .npz, .npy, .pt."
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="Its name says what is written: .safetensors (an image) and .latents (a video) in tvae's form; .latent "
        "(ComfyUI), .npz, .npy, .pt.",
    ),
]
ToSpace = Annotated[
    Literal["raw", "model"] | None,
    typer.Option(
        "--to-space",
        help="Write values as the encoder gives them (raw), or scaled for the diffusion model (model).",
        show_default="raw in .latent, else that of FROM",
        rich_help_panel=options.LATENTS,
    ),
]


def convert(
    source: Source,
    target: Target,
    vae: options.LatentsVae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    space: options.ForeignSpace = None,
    to_space: ToSpace = None,
    key: options.ForeignKey = None,
    size: options.TokensSize = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write latents in another form or another space, without decoding them.

    Files of other programs do not say which VAE and space they are of: pass --vae and --space.
    """
    with reporting(verbose, json):
        from pathlib import Path

        from tvae.cli import arguments
        from tvae.cli.table import emit
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.jobs import Job
        from tvae.pipeline.jobs.convert import convert as convert_latents
        from tvae.pipeline.jobs.remote.refusals import refuse_urls
        from tvae.pipeline.jobs.vaes import Vaes

        refuse_urls([source, target], "tvae convert")
        if not Path(source).exists():
            raise UsageError(f"{source} does not exist")
        wanted = arguments.parse_size(size)
        job = Job(
            "decode",
            (source,),
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            latents_space=space,
            latents_key=key,
            size=wanted,
        )
        lost = convert_latents(Path(source), Path(target), job, Vaes(job), to_space, overwrite=overwrite)
        if json:
            emit("converted", {"input": source, "output": target, "lost": lost}, as_json=True)
            return
        for line in lost:
            say(f"warning: {line}")
        tell(printable(f"{source} -> {target}"))
