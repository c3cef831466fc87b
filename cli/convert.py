"""``tvae convert``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tvae.cli import completion, options
from tvae.cli.options.caching import CACHE
from tvae.cli.reporting import printable, reporting, say, tell

if TYPE_CHECKING:
    from tvae.pipeline.jobs import Job
    from tvae.pipeline.jobs.conversion import Conversion
    from tvae.pipeline.jobs.job import Space

__all__ = ["convert"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="Latents of tvae, or a file of another program: .latent, .safetensors, .npz, .npy, .pt. With --for also a "
        "folder of tvae's latents; with --from that of a cache.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="Its name says what is written: .safetensors (an image) and .latents (a video) in tvae's form; .latent "
        "(ComfyUI), .npz, .npy, .pt. With --for and --from a folder.",
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
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TRAINER",
        help="FROM is the folder of this trainer's cache. Needs --vae.",
        autocompletion=completion.trainers,
        rich_help_panel=CACHE,
    ),
]
FromArch = Annotated[
    str | None,
    typer.Option(
        "--from-arch",
        metavar="NAME",
        help="With --from and --for: the diffusion model of the cache that is read; --arch is then of the one written.",
        show_default="the only one that the VAE suits",
        rich_help_panel=CACHE,
    ),
]
Pictures = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="FOLDER",
        help="With --from: folder of the images and videos that the cache was made of. They say what its files do not: "
        "whole names, sizes, frame rates.",
        show_default="FROM",
        rich_help_panel=CACHE,
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
        help="With --for and --from the resolution that the trainer is set to. Otherwise of the picture, where another "
        "program's latents are rows of tokens (Flux).",
        show_default=False,
        rich_help_panel=options.LATENTS,
    ),
]


def convert(
    source: Source,
    target: Target,
    trainer: For = None,
    came_from: From = None,
    arch: options.Arch = None,
    from_arch: FromArch = None,
    pictures: Pictures = None,
    size: Size = None,
    buckets: options.Buckets = "on",
    no_upscale: options.NoUpscale = False,
    posterior: options.CachePosterior = None,
    seed: options.Seed = 0,
    target_fps: options.TargetFps = None,
    vae: options.LatentsVae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    allow_other_vae: AllowOtherVae = False,
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

    With --for, tvae's latents become a cache of a trainer; with --from, such a cache becomes latents of tvae; with
    both, one trainer's cache becomes another's. Pictures must have been scaled and cut as the trainer of --for would
    do it: say with --size, --buckets and --no-upscale how it is set. Each that was not fails with a line that says
    what is wanted.
    """
    with reporting(verbose, json, resumable=trainer is not None or came_from is not None):
        from pathlib import Path

        from tvae.cli import arguments
        from tvae.pipeline.errors import UsageError
        from tvae.pipeline.jobs import Job
        from tvae.pipeline.jobs.remote.refusals import refuse_urls

        refuse_urls([source, target, *([pictures] if pictures else [])], "tvae convert")
        if not Path(source).exists():
            raise UsageError(f"{source} does not exist")
        wanted = arguments.parse_size(size)
        if trainer is None and came_from is None:
            given = {"--arch": arch, "--buckets": buckets != "on", "--no-upscale": no_upscale, "--posterior": posterior}
            _refuse(given | {"--seed": seed, "--recursive": recursive}, "of caches: pass --for or --from, too")
            _refuse(_of_from(from_arch, pictures, target_fps), "of caches that are read: pass --from, too")
            job = Job(
                "decode",
                (source,),
                vae=vae,
                vae_of=vae_of,
                allow_pickle=allow_pickle,
                allow_other_vae=allow_other_vae,
                latents_space=space,
                latents_key=key,
                size=wanted,
            )
            _one_file(source, target, job, to_space, overwrite, json)
            return
        from tvae.pipeline.caches import Buckets, CacheRequest
        from tvae.pipeline.jobs.conversion import Conversion

        _refuse({"--space": space, "--key": key}, "of single files; caches have their own")
        if came_from is None:
            _refuse(_of_from(from_arch, pictures, target_fps), "of caches that are read: pass --from, too")
            of_from: dict[str, object] = {"--vae": vae, "--vae-of": vae_of, "--allow-other-vae": allow_other_vae}
            _refuse(of_from, "of --from; tvae's latents say which VAE they are of")
        if trainer is None:
            _refuse({"--from-arch": from_arch}, "of conversions from one cache into another; pass --arch")
            _refuse({"--posterior": posterior, "--seed": seed}, "of --for")
        else:
            _refuse({"--to-space": to_space}, "of tvae's own latents; a cache has the trainer's")
        into, out_of = (
            None if name is None else CacheRequest(name, of, Buckets.parse(buckets), not no_upscale)
            for name, of in ((trainer, arch), (came_from, arch if trainer is None else from_arch))
        )
        into = into and replace(into, posterior=posterior)
        out_of = out_of and replace(out_of, target_fps=target_fps)
        job = Job(
            "cache",
            (source,),
            output=target,
            recursive=recursive,
            existing=arguments.existing(overwrite, False),
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            allow_other_vae=allow_other_vae,
            device="cpu",
            size=wanted,
            seed=seed,
            cache=into or out_of,
        )
        folder = None if pictures is None else Path(pictures)
        _many(Conversion(job, out_of, into is None, folder, to_space), json, quiet, verbose, not no_progress)


def _of_from(arch: str | None, pictures: str | None, target_fps: float | None) -> dict[str, object]:
    return {"--from-arch": arch, "--source": pictures, "--target-fps": target_fps}


def _refuse(given: dict[str, object], whose: str) -> None:
    """Raises UsageError for the first option that says anything. whose: what it is of, and what to do."""
    from tvae.pipeline.errors import UsageError

    for name, value in given.items():
        if value not in (None, False, 0):
            raise UsageError(f"{name} is {whose}")


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


def _many(wanted: Conversion, as_json: bool, quiet: bool, verbose: bool, progress: bool) -> None:
    from tvae.cli.exit_codes import ExitCode
    from tvae.cli.render import Display
    from tvae.pipeline.jobs.cache_names import advice
    from tvae.pipeline.jobs.conversion import run_conversion

    with Display(as_json=as_json, quiet=quiet, verbose=verbose, progress=progress) as display:
        finished = run_conversion(wanted, display.show)
    if finished.done and not (quiet or as_json or wanted.into_own):
        for line in advice(wanted.job, display.output, wanted.images):
            say(line)
    raise typer.Exit(ExitCode.SOME_FAILED if finished.failed else ExitCode.DONE)
