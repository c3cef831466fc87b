"""``tvae bench kernels | vae | job | io``: what this machine gives, measured."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tvae.cli import options
from tvae.cli.exit_codes import ExitCode
from tvae.cli.reporting import reporting
from tvae.cli.status_line import StatusLine

__all__ = ["app"]

app = typer.Typer(help="Measure kernels by level, whole VAEs against diffusers, whole jobs, and reading and writing.")

Plot = Annotated[
    str | None, typer.Option("--plot", metavar="FILE.png", help=r"Also draw a chart (needs tvae\[bench]).")
]
Repeat = Annotated[
    int | None, typer.Option("--repeat", metavar="N", min=1, help="How many calls to time; the median counts.")
]
Folder = Annotated[
    str | None,
    typer.Option("--folder", metavar="DIR", help="Write to this disk.", show_default="the temporary folder"),
]


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def kernels(
    levels: Annotated[
        str | None,
        typer.Option(
            "--levels",
            metavar="A,B",
            help="Levels to measure: native, script, compile, triton, cuda.",
            show_default="all",
        ),
    ] = None,
    ops: Annotated[
        str | None,
        typer.Option("--ops", metavar="A,B", help="Operations to measure, such as norm_act.", show_default="all"),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            metavar="N",
            min=16,
            help="Width and height of the picture in pixels.",
            show_default="1024; on a CPU 128",
        ),
    ] = None,
    channels: Annotated[
        int, typer.Option("--channels", metavar="N", min=8, help="Channels of the picture, a multiple of 8.")
    ] = 128,
    preset: options.Preset = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    quick: Annotated[bool, typer.Option("--quick", help="Check only the calls that are timed.")] = False,
    repeat: Repeat = None,
    plot: Plot = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Measure every operation at every level: error against float64, time, share of the device's peak.

    The peaks (of a large copy and a large matrix product) are measured in the same run.
    The error shown is the largest of the timed call and of small calls that cover the operation's arguments.
    Exit code 4: a level is wrong.
    """
    with reporting(verbose, json, quiet=quiet), StatusLine(shown=not (json or quiet or no_progress)) as line:
        from tvae.cli import bench_report, bench_request
        from tvae.pipeline.bench.kernels import bench_kernels, default_size

        chart = bench_request.plot_path(plot)
        request = bench_request.setting(preset, dtype, device)
        pixels = size or default_size(request.device)
        if channels % 8:
            bench_request.refuse(f"--channels {channels} is not a multiple of 8")
        found = bench_kernels(
            request.preset,
            request.device,
            request.dtype,
            size=pixels,
            channels=channels,
            levels=bench_request.levels(levels),
            operations=bench_request.operations(ops),
            repeat=repeat or (20 if request.device.type == "cuda" else 5),
            quick=quick,
        )
        rows = bench_report.kernels(found, request, line, json=json)
        if chart is not None:
            from tvae.pipeline.bench.plot import plot_kernels

            plot_kernels(rows, f"{request.words}, {pixels} px, {channels} channels", chart)
        if any(row.status in ("wrong", "failed") for row in rows):
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)


@app.command()
def vae(
    vae: options.Vae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    config: options.Config = None,
    side: Annotated[Literal["encode", "decode", "both"], typer.Option("--side", help="What to measure.")] = "decode",
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes", metavar="N,WxH", help="Sizes in pixels.", show_default="512,1024; video 832x480; on a CPU 128"
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(
            "--frames", metavar="N", min=1, help="Frames of a clip, for video VAEs.", show_default="17; on a CPU 5"
        ),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", metavar="A,B", help="How many pictures or clips in one call.")] = "1",
    rivals: Annotated[
        str | None,
        typer.Option(
            "--rivals",
            metavar="A,B",
            help="What to compare with: diffusers, channels-last, tiled, compile.",
            show_default="diffusers, tiled; compile on CUDA, channels-last on a CPU",
        ),
    ] = None,
    channels_last: Annotated[
        bool | None,
        typer.Option(
            "--channels-last/--no-channels-last", help="Also compare with diffusers in that layout.", show_default=False
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="Also compare with torch.compile of diffusers.", show_default=False
        ),
    ] = None,
    reference: Annotated[
        Literal["float32", "float64", "none"] | None,
        typer.Option(
            "--reference",
            help="Number type of the untiled run that errors are measured against.",
            show_default="float32; for float32 float64",
        ),
    ] = None,
    first_use: Annotated[
        bool,
        typer.Option(
            "--first-use",
            help="Also time the first result of new processes, with empty caches and then with filled ones.",
        ),
    ] = False,
    preset: options.Preset = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    strip: options.Strip = None,
    repeat: Repeat = None,
    plot: Plot = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Measure a whole VAE in tvae and in diffusers, with the same weights: time, memory, error."""
    with reporting(verbose, json, quiet=quiet), StatusLine(shown=not (json or quiet or no_progress)) as line:
        from tvae.cli import bench_report, bench_request
        from tvae.pipeline.bench.vae import bench_vae

        chart, request = bench_request.plot_path(plot), bench_request.setting(preset, dtype, device)
        chosen = bench_request.rivals(rivals, channels_last, compile, request.device)
        shapes, batches = bench_request.sizes(sizes), bench_request.batches(batch)
        model, name = bench_request.model(vae, config, vae_of, allow_pickle=allow_pickle)
        subject = bench_request.subject(request, vae, config, strip, vae_of, allow_pickle=allow_pickle)
        found = bench_vae(
            model,
            bench_request.cases(model, side, shapes, batches, frames, request.device),
            chosen,
            request.preset,
            request.device,
            request.dtype,
            strip=strip,
            reference=bench_request.reference(reference, request.dtype),
            repeat=repeat or (5 if request.device.type == "cuda" else 3),
            subject=subject if first_use else None,
            tell=line.show,
        )
        rows = bench_report.vae(found, name, request, line, json=json)
        if chart is not None:
            from tvae.pipeline.bench.plot import plot_vae

            plot_vae(rows, f"{name}, {request.words}", chart)
        if any(row.rival == "tvae" and row.status == "failed" for row in rows):
            raise typer.Exit(ExitCode.VERIFICATION_FAILED)


@app.command()
def job(
    inputs: options.Inputs = None,
    recursive: options.Recursive = False,
    vae: options.Vae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    batch: options.Batch = "auto",
    size: options.Size = None,
    folder: Folder = None,
    preset: options.Preset = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    plot: Plot = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Measure whole jobs over your own photos: encode them, skip them once they are done, decode their latents.

    Says how many a second, how busy reading, computing and writing are, and which of them is the bottleneck.
    All files that it writes are removed.
    """
    with reporting(verbose, json, quiet=quiet), StatusLine(shown=not (json or quiet or no_progress)) as line:
        from pathlib import Path

        from tvae.cli import arguments, bench_report, bench_request
        from tvae.pipeline.bench.job import bench_job
        from tvae.pipeline.jobs import Job

        chart, where = bench_request.plot_path(plot), bench_request.existing(folder, folder=True)
        request = bench_request.setting(preset, dtype, device)
        work = Job(
            "encode",
            tuple(inputs or ()),
            recursive=recursive,
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            preset=preset,
            dtype=dtype,
            device=device,
            batch=arguments.batch_size(batch),
            size=arguments.parse_size(size),
        )
        found = bench_job(work, None if where is None else Path(where), line.show)
        rows = bench_report.job(found, vae or "builtin", request, line, json=json)
        if chart is not None:
            from tvae.pipeline.bench.plot import plot_job

            plot_job(rows, f"{vae or 'builtin'}, {request.words}", chart)
        if any(row.failed for row in rows):
            raise typer.Exit(ExitCode.SOME_FAILED)


@app.command("io")
def io_(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="An image or a video to read. Default: one is made.", show_default=False),
    ] = None,
    size: options.Size = None,
    frames: Annotated[int, typer.Option("--frames", metavar="N", min=2, help="Frames of the clip that is made.")] = 24,
    folder: Folder = None,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Measure reading frames, copying them to the device, writing latents and videos, and the disk.

    All files that it writes are removed.
    """
    with reporting(verbose, json, quiet=quiet), StatusLine(shown=not (json or quiet or no_progress)) as line:
        from pathlib import Path

        from tvae.cli import arguments, bench_report, bench_request
        from tvae.pipeline.bench.io import bench_io
        from tvae.pipeline.device import pick_device

        source, where = bench_request.existing(file), bench_request.existing(folder, folder=True)
        found = bench_io(
            pick_device(device),
            file=source,
            size=arguments.parse_size(size) or (640, 384),
            frames=frames,
            folder=None if where is None else Path(where),
        )
        bench_report.io(found, line, json=json)
