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
        metavar="FROM",
        help="Latents of tvae, or a file of another program: .latent, .safetensors, .npz, .npy, .pt.",
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
AllowOtherVae = Annotated[
    bool,
    typer.Option(
        "--allow-other-vae",
        help="Take the latents for those of the VAE of --vae even if another one of the same geometry made them (a "
        "finetuned decoder).",
        rich_help_panel=options.LATENTS,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="WxH",
        help="Size of the picture, where another program's latents are rows of tokens (Flux).",
        show_default=False,
        rich_help_panel=options.LATENTS,
    ),
]


def convert(
    source: Source,
    target: Target,
    size: Size = None,
    vae: options.LatentsVae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    allow_other_vae: AllowOtherVae = False,
    space: options.ForeignSpace = None,
    to_space: ToSpace = None,
    key: options.ForeignKey = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write latents in another form or another space, without decoding them.

    Files of other programs do not say which VAE and space they are of: pass --vae and --space.
    """
    with reporting(verbose, json, quiet=quiet):
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
        job = Job(
            "decode",
            (source,),
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            allow_other_vae=allow_other_vae,
            latents_space=space,
            latents_key=key,
            size=arguments.parse_size(size),
        )
        lost = convert_latents(Path(source), Path(target), job, Vaes(job), to_space, overwrite=overwrite)
        if json:
            emit("converted", {"input": source, "output": target, "lost": lost}, as_json=True)
            return
        for line in lost:
            say(f"warning: {line}")
        tell(printable(f"{source} -> {target}"))
