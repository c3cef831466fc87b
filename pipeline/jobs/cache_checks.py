"""What a cache job is refused for before any work: what the trainer has no room for, or the VAE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvae.pipeline.caches.spec import CLIP_OPTIONS
from tvae.pipeline.caches.webdataset import MOST_BYTES
from tvae.pipeline.errors import UsageError

if TYPE_CHECKING:
    from tvae.pipeline.caches import CacheRequest, Trainer
    from tvae.pipeline.jobs.cache_plan import CachePlan

__all__ = ["check_plan"]


def check_plan(plan: CachePlan) -> None:
    """Raises UsageError."""
    request, trainer, info = plan.request, plan.trainer, plan.model.info
    if request.flip and not trainer.flips:
        raise UsageError(f"{trainer.name} keeps no mirrored images in its cache; leave --flip out")
    if request.alpha_mask and not trainer.alpha_masks:
        raise UsageError(f"{trainer.name} keeps no alpha in its cache; leave --alpha-mask out")
    _check_cuts(request, trainer)
    if request.cuts_clips and not plan.architecture.clips:
        raise UsageError(f"{trainer.name} caches images alone for {plan.architecture.name}; leave {CLIP_OPTIONS} out")
    if request.shards is not None and not trainer.shards:
        raise UsageError(f"{trainer.name} reads a file of each source, and no shards; leave --shards out")
    if plan.shard_bytes > MOST_BYTES:
        raise UsageError(f"--shards {request.shards}: a shard has at most {MOST_BYTES} bytes")
    width, height = plan.settings.resolution
    if trainer.square and width != height:
        raise UsageError(f"the resolution of {trainer.name} is one number: --size {width}x{width}")
    if trainer.enlarges and not request.upscale:
        raise UsageError(f"{trainer.name} enlarges all small images; leave --no-upscale out")
    if request.buckets.smallest is not None and not trainer.ranges:
        raise UsageError(f"{trainer.name} has no range of buckets to set; pass --buckets on or off")
    if trainer.one_piece and request.stride is not None:
        raise UsageError(f"{trainer.name} keeps one file of each video and cannot tell pieces apart; drop --stride")
    if plan.architecture.space == "model" and info.space.unknown is not None:
        raise UsageError(
            f"{trainer.name} caches model space for {plan.architecture.name}, and nothing is known of that of VAE "
            f"'{info.id}': {info.space.unknown}; say which model it is of (--vae-of)"
        )
    grid = info.spatial_factor * (info.space.patch if plan.architecture.space == "model" else 1)
    if plan.settings.step % grid:
        raise UsageError(f"sides of buckets in steps of {plan.settings.step} are no multiples of {grid}, of this VAE")
    if (trainer.one_size or not request.buckets.on) and (width % grid or height % grid):
        raise UsageError(f"--size {width}x{height} is no multiple of {grid}, which this VAE needs without buckets")
    _check_frames(plan)


def _check_cuts(request: CacheRequest, trainer: Trainer) -> None:
    """What one trainer alone can be told."""
    if trainer.frame_extraction:
        return
    for name, value in (("frame_sample", request.frame_sample), ("max_frames", request.max_frames)):
        if value is not None:
            raise UsageError(f"{trainer.name} has no {name}; leave --{name.replace('_', '-')} out")
    if max(len(request.frames or ()), len(request.stride or ())) > 1:
        raise UsageError(f"{trainer.name} does not tell pieces of several lengths apart; name one with --frames")


def _check_frames(plan: CachePlan) -> None:
    request, info = plan.request, plan.model.info
    if info.temporal_factor is None:
        return
    for frames in request.frames or ():
        over = (frames - info.lead_frames) % info.temporal_factor
        if over or frames < info.lead_frames:
            shorter = max(frames - over, info.lead_frames or info.temporal_factor)
            raise UsageError(
                f"--frames {frames}: this VAE takes {info.lead_frames} + a multiple of {info.temporal_factor}, "
                f"such as {shorter} or {shorter + info.temporal_factor}"
            )
