"""``tvae convert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tvae.cli import completion, options
from tvae.cli.options.caching import CACHE
from tvae.cli.reporting import printable, reporting, say, tell

if TYPE_CHECKING:
    from tvae.pipeline.jobs import Job
    from tvae.pipeline.jobs.job import Space

__all__ = ["convert"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="Latents of tvae, or a file of another program: .latent, .safetensors, .npz, .npy, .pt. With --for also a "
        "folder of tvae's latents.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="Its name says what is written: .safetensors (an image) and .latents (a video) in tvae's form; .latent "
        "(ComfyUI), .npz, .npy, .pt. With --for the folder of the cache.",
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


For = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TRAINER",
        help="Write a cache that this trainer reads, as tvae cache does: kohya, musubi and others.",
        autocompletion=completion.trainers,
        rich_help_panel=CACHE,
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="WxH",
        help="With --for the resolution that the trainer is set to. Otherwise of the picture, where another program's "
        "latents are rows of tokens (Flux).",
        show_default=False,
        rich_help_panel=options.LATENTS,
    ),
]


def convert(
    source: Source,
    target: Target,
    trainer: For = None,
    arch: options.Arch = None,
    size: Size = None,
    buckets: options.Buckets = "on",
    no_upscale: options.NoUpscale = False,
    posterior: options.CachePosterior = None,
    seed: options.Seed = 0,
    vae: options.LatentsVae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    space: options.ForeignSpace = None,
    to_space: ToSpace = None,
    key: options.ForeignKey = None,
    recursive: options.Recursive = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write latents in another form or another space, without decoding them.

    Files of other programs do not say which VAE and space they are of: pass --vae and --space.

    With --for, tvae's latents become a cache of a trainer. Their pictures must have been scaled and cut as the trainer
    would do it; each that was not fails with a line that says what is wanted.
    """
    with reporting(verbose, json, resumable=trainer is not None):
        from pathlib import Path

        from tvae.cli import arguments
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.jobs import Job
        from tvae.pipeline.jobs.remote.refusals import refuse_urls

        refuse_urls([source, target], "tvae convert")
        if not Path(source).exists():
            raise UsageError(f"{source} does not exist")
        _check_together(
            trainer is not None,
            {"--arch": arch, "--buckets": buckets != "on", "--no-upscale": no_upscale, "--posterior": posterior}
            | {"--seed": seed, "--recursive": recursive},
            {"--vae": vae, "--space": space, "--key": key, "--to-space": to_space},
        )
        wanted = arguments.parse_size(size)
        if trainer is None:
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
            _one_file(source, target, job, to_space, overwrite, json)
            return
        from tvae.pipeline.caches import Buckets, CacheRequest

        job = Job(
            "cache",
            (source,),
            output=target,
            recursive=recursive,
            existing=arguments.existing(overwrite, False),
            vae=vae,
            size=wanted,
            seed=seed,
            cache=CacheRequest(trainer, arch, Buckets.parse(buckets), not no_upscale, posterior=posterior),
        )
        _many(job, json, quiet, verbose, not no_progress)


def _check_together(caches: bool, of_caches: dict[str, object], of_files: dict[str, object]) -> None:
    """Raises UsageError for options of the other kind of conversion."""
    from tvae.pipeline.errors import UsageError

    for name, value in (of_files if caches else of_caches).items():
        if value not in (None, False, 0):
            where = "of single files; with --for, latents say it themselves" if caches else "of caches: pass --for, too"
            raise UsageError(f"{name} is {where}")


def _one_file(source: str, target: str, job: Job, to_space: Space | None, overwrite: bool, as_json: bool) -> None:
    from pathlib import Path

    from tvae.cli.table import emit
    from tvae.pipeline.jobs.convert import convert as convert_latents
    from tvae.pipeline.jobs.vaes import Vaes

    lost = convert_latents(Path(source), Path(target), job, Vaes(job), to_space, overwrite=overwrite)
    if as_json:
        emit("converted", {"input": source, "output": target, "lost": lost}, as_json=True)
        return
    for line in lost:
        say(f"warning: {line}")
    tell(printable(f"{source} -> {target}"))


def _many(job: Job, as_json: bool, quiet: bool, verbose: bool, progress: bool) -> None:
    from tvae.cli.exit_codes import ExitCode
    from tvae.cli.render import Display
    from tvae.pipeline.jobs.conversion import Conversion, run_conversion

    with Display(as_json=as_json, quiet=quiet, verbose=verbose, progress=progress) as display:
        finished = run_conversion(Conversion(job), display.show)
    raise typer.Exit(ExitCode.SOME_FAILED if finished.failed else ExitCode.DONE)
