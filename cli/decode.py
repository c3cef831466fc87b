"""``tvae decode``."""

from __future__ import annotations

from tvae.cli import options
from tvae.cli.reporting import reporting

__all__ = ["decode"]


def decode(
    inputs: options.LatentInputs = None,
    output: options.UrlOutput = None,
    batch_file: options.BatchFile = None,
    recursive: options.Recursive = False,
    overwrite: options.Overwrite = False,
    no_clobber: options.NoClobber = False,
    dry_run: options.DryRun = False,
    print_config: options.PrintConfig = False,
    vae: options.LatentsVae = None,
    vae_of: options.VaeOf = None,
    allow_pickle: options.AllowPickle = False,
    allow_other_vae: options.AllowOtherVae = False,
    space: options.ForeignSpace = None,
    key: options.ForeignKey = None,
    size: options.TokensSize = None,
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
    codec: options.Codec = None,
    crf: options.Crf = None,
    pix_fmt: options.PixFmt = None,
    enc: options.Enc = None,
    fps: options.Fps = None,
    audio: options.Audio = "copy",
    alpha: options.Alpha = "keep",
    sandbox: options.Sandbox = "auto",
    color: options.Color = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Decode latents to images and videos.

    Needs only the latents and their VAE.
    Those of other programs do not say it: pass --vae and --space.
    Outputs are named after the source, with .png for an image and .mp4 for a video.
    Outputs made before from the same latents, with the same options, are skipped.
    Interrupted ones are continued.
    """
    with reporting(verbose, json, resumable=True):
        from tvae.cli import arguments
        from tvae.cli.work import carry_out, tell_job
        from tvae.pipeline.jobs import Job

        job = Job(
            "decode",
            tuple(inputs or ()),
            output=output,
            listed=arguments.listed(batch_file),
            recursive=recursive,
            existing=arguments.existing(overwrite, no_clobber),
            dry_run=dry_run,
            vae=vae,
            vae_of=vae_of,
            allow_pickle=allow_pickle,
            allow_other_vae=allow_other_vae,
            latents_space=space,
            latents_key=key,
            size=arguments.parse_size(size),
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
            codec=codec,
            crf=crf,
            pix_fmt=pix_fmt,
            encoder_options=arguments.parse_pairs(enc),
            fps=arguments.parse_fps(fps),
            audio=audio,
            alpha=alpha,
            sandbox=sandbox,
            color=color,
        )
        if print_config:
            tell_job(job)
            return
        carry_out(job, as_json=json, quiet=quiet, verbose=verbose, progress=not no_progress)
