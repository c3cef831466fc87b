"""``tvae cache``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tvae.cli import completion, options
from tvae.cli.reporting import reporting

__all__ = ["cache"]

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
Posterior = Annotated[
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
For = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="TRAINER",
        help="The program that reads the cache: kohya (sd-scripts), musubi (musubi-tuner) and others, or shards for "
        "webdataset; tvae names them all where it does not know one.",
        autocompletion=completion.trainers,
        rich_help_panel=CACHE,
    ),
]
Resolution = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="WxH",
        help="Resolution that the trainer is set to. With buckets, their area.",
        show_default="the trainer's",
        rich_help_panel=CACHE,
    ),
]
Flip = Annotated[bool, typer.Option("--flip", help="Also cache each image mirrored left-right.", rich_help_panel=CACHE)]
AlphaMask = Annotated[
    bool,
    typer.Option(
        "--alpha-mask",
        help="Also cache the alpha of each image, for a trainer that is set to weigh its loss by it.",
        rich_help_panel=CACHE,
    ),
]
Frames = Annotated[
    str | None,
    typer.Option(
        "--frames",
        metavar="N[,N…]",
        help="Frames of each piece of a video. With --for musubi: of several lengths, as its target_frames has them.",
        show_default="all, one piece",
        rich_help_panel=CACHE,
    ),
]
Stride = Annotated[
    str | None,
    typer.Option(
        "--stride",
        metavar="N[,N…]",
        help="Cut a piece every N frames; for several lengths one N, or one for each.",
        show_default="one piece of each video",
        rich_help_panel=CACHE,
    ),
]
Start = Annotated[
    int,
    typer.Option("--start", metavar="N", min=0, help="Frame that the first piece begins with.", rich_help_panel=CACHE),
]
FrameSample = Annotated[
    int | None,
    typer.Option(
        "--frame-sample",
        metavar="N",
        min=1,
        help="With --for musubi: cut N pieces of each length, spread evenly over the video, as it does with "
        "frame_extraction uniform and frame_sample N.",
        show_default="one piece, or as --stride says",
        rich_help_panel=CACHE,
    ),
]
MaxFrames = Annotated[
    int | None,
    typer.Option(
        "--max-frames",
        metavar="N",
        min=1,
        help="With --for musubi, without --frames: use the first N frames of longer videos, as it does with "
        "frame_extraction full; 129 where its configuration has no max_frames.",
        show_default="all",
        rich_help_panel=CACHE,
    ),
]
Shards = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="SIZE",
        help="With --for webdataset: largest size of a shard, such as 1GB.",
        show_default="1GB",
        rich_help_panel=CACHE,
    ),
]


def cache(
    trainer: For,
    inputs: options.Inputs = None,
    output: options.Output = None,
    batch_file: options.BatchFile = None,
    recursive: options.Recursive = False,
    overwrite: options.Overwrite = False,
    no_clobber: options.NoClobber = False,
    dry_run: options.DryRun = False,
    print_config: options.PrintConfig = False,
    arch: Arch = None,
    size: Resolution = None,
    buckets: Buckets = "on",
    no_upscale: NoUpscale = False,
    flip: Flip = False,
    alpha_mask: AlphaMask = False,
    posterior: Posterior = None,
    seed: options.Seed = 0,
    frames: Frames = None,
    stride: Stride = None,
    start: Start = 0,
    frame_sample: FrameSample = None,
    max_frames: MaxFrames = None,
    target_fps: TargetFps = None,
    shards: Shards = None,
    vae: options.Vae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    preset: options.Preset = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    devices: options.Devices = None,
    strip: options.Strip = None,
    vram: options.Vram = None,
    spill: options.Spill = None,
    threads: options.Threads = None,
    allow_whole: options.AllowWhole = False,
    wait_for_kernels: options.WaitForKernels = False,
    batch: options.Batch = "auto",
    max_megapixels: options.MaxMegapixels = None,
    sandbox: options.Sandbox = "auto",
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Write the latents that a trainer would cache: its file names, contents, scaling and buckets.

    Captions stay where they are; they are the trainer's business.
    What is there already and still right is skipped: after a change of image, VAE or options its files are made again.

    With --for webdataset, latents of any VAE (--arch raw or model says in which space) and the texts beside the
    images (.txt, .json and others) come into shards, in the order of the inputs, which may be .tar archives.
    A run that was interrupted keeps its complete shards and continues with the next. An image that has changed leaves
    its shard for a new one; another VAE or other options are refused (--overwrite replaces). Images that fail are left
    out, and the next run puts them into a new shard.
    """
    with reporting(verbose, json, resumable=True):
        from tvae.cli import arguments
        from tvae.cli.work import carry_out, tell_job
        from tvae.pipeline.caches import Buckets as CacheBuckets
        from tvae.pipeline.caches import CacheRequest
        from tvae.pipeline.jobs import Job

        job = Job(
            "cache",
            tuple(inputs or ()),
            output=output,
            listed=arguments.listed(batch_file),
            recursive=recursive,
            existing=arguments.existing(overwrite, no_clobber),
            dry_run=dry_run,
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            preset=preset,
            dtype=dtype,
            device=device,
            devices=devices,
            strip=strip,
            vram=vram,
            spill=spill,
            threads=threads,
            allow_whole=allow_whole,
            wait_for_kernels=wait_for_kernels,
            batch=arguments.batch_size(batch),
            max_pixels=arguments.pixel_limit(max_megapixels),
            sandbox=sandbox,
            size=arguments.parse_size(size),
            seed=seed,
            cache=CacheRequest(
                trainer,
                arch,
                CacheBuckets.parse(buckets),
                not no_upscale,
                flip,
                alpha_mask,
                posterior,
                arguments.parse_counts(frames, "--frames"),
                arguments.parse_counts(stride, "--stride"),
                start,
                target_fps,
                shards,
                frame_sample,
                max_frames,
            ),
        )
        if print_config:
            tell_job(job)
            return
        carry_out(job, as_json=json, quiet=quiet, verbose=verbose, progress=not no_progress)
