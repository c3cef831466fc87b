"""``tvae roundtrip``."""

from __future__ import annotations

from tvae.cli import options
from tvae.cli.reporting import reporting

__all__ = ["roundtrip"]


def roundtrip(
    inputs: options.UrlInputs = None,
    output: options.UrlOutput = None,
    batch_file: options.BatchFile = None,
    recursive: options.Recursive = False,
    overwrite: options.Overwrite = False,
    no_clobber: options.NoClobber = False,
    dry_run: options.DryRun = False,
    print_config: options.PrintConfig = False,
    vae: options.Vae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    preset: options.Preset = "auto",
    dtype: options.Dtype = None,
    device: options.Device = None,
    devices: options.Devices = None,
    split: options.Split = "auto",
    strip: options.Strip = None,
    vram: options.Vram = None,
    spill: options.Spill = None,
    threads: options.Threads = None,
    allow_whole: options.AllowWhole = False,
    wait_for_kernels: options.WaitForKernels = False,
    batch: options.Batch = "auto",
    max_megapixels: options.MaxMegapixels = None,
    sandbox: options.Sandbox = "auto",
    size: options.Size = None,
    fit: options.Fit = "contain",
    align: options.Align = "pad",
    codec: options.Codec = None,
    crf: options.Crf = None,
    pix_fmt: options.PixFmt = None,
    enc: options.Enc = None,
    fps: options.Fps = None,
    audio: options.Audio = "copy",
    alpha: options.Alpha = "keep",
    color: options.Color = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Encode and decode images and videos, and measure PSNR and SSIM.

    Outputs are named after the source, with .png for an image and .mp4 for a video.
    Outputs made before from the same source, with the same VAE and options, are skipped.
    PSNR and SSIM compare the VAE's input with its output, before a video is compressed.
    """
    with reporting(verbose, json, resumable=True):
        from tvae.cli import arguments
        from tvae.cli.work import carry_out, tell_job
        from tvae.pipeline.jobs import Job

        job = Job(
            "roundtrip",
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
            split=split,
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
            fit=fit,
            align=align,
            codec=codec,
            crf=crf,
            pix_fmt=pix_fmt,
            encoder_options=arguments.parse_pairs(enc),
            fps=arguments.parse_fps(fps),
            audio=audio,
            alpha=alpha,
            color=color,
        )
        if print_config:
            tell_job(job)
            return
        carry_out(job, as_json=json, quiet=quiet, verbose=verbose, progress=not no_progress)
