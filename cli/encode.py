"""``tvae encode``."""

from __future__ import annotations

from tvae.cli import options
from tvae.cli.reporting import reporting

__all__ = ["encode"]


def encode(
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
    posterior: options.Posterior = "mean",
    seed: options.Seed = 0,
    space: options.Space = "raw",
    audio: options.KeepAudio = "copy",
    alpha: options.KeepAlpha = "keep",
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Encode images and videos to latents.

    An image becomes NAME.safetensors, a video the folder NAME.latents.
    Outputs made before from the same source, with the same VAE and options, are skipped.
    Interrupted ones are continued.
    """
    with reporting(verbose, json, resumable=True):
        from tvae.cli import arguments
        from tvae.cli.work import carry_out, tell_job
        from tvae.pipeline.jobs import Job

        job = Job(
            "encode",
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
            posterior=posterior,
            seed=seed,
            space=space,
            audio=audio,
            alpha=alpha,
        )
        if print_config:
            tell_job(job)
            return
        carry_out(job, as_json=json, quiet=quiet, verbose=verbose, progress=not no_progress)
