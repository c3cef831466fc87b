"""diffusion-pipe: ``cache/{model}/cache_{bucket}/latents`` in each folder of a data set, shards and an SQLite file.

Read at commit 8f83dbf25d03219df705570ec03e62be04bc402f: ``utils/dataset`` (which files, their order, buckets),
``models/base`` (pixels, clips), and ``get_call_vae_fn`` of the models. See ``caches/tables`` for what finds the cache,
and ``caches/shards/pickled`` for what it holds.

An architecture is called as diffusion-pipe calls its folder. Images are taken as they are stored, laid over white where
they have an alpha channel, cut to the proportions of their bucket around the middle, between pixels too, and scaled
bicubically. ComfyUI's VAEs (Z-Image, FLUX.2, ERNIE-Image, Krea 2) give the mean, as do AuraFlow's, Qwen-Image's, and
Wan's; the others a sample.

Models that are trained on videos have clips of those: the frames that ``caches/tables/videos`` chooses, as
``media/comfyui_frames`` reads them, each cut and scaled as an image is. Other models leave videos out.

Left out: models that want more of an image than its latents (Wan's and SkyReels' from images to videos), whose
folder is called as a user's file (LTX-Video), or which encode otherwise than diffusers or have not been compared
(Cosmos, HunyuanImage, HunyuanVideo, which is tiled, HunyuanVideo-1.5, Ideogram 4, LTX-2, MiniMax H3).
"""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath

from tvae.pipeline.caches.shards.pickled import PICKLED
from tvae.pipeline.caches.spec import Architecture, Framing, Size, Subject, Trainer, Wish

__all__ = ["TRAINER"]

_RESOLUTION = (1024, 1024)
"""Never asked for: data sets say theirs."""
_16_CHANNELS = ("AutoencoderKLQwenImage", "AutoencoderKLWan")
_FLUX = (0.3611, 0.1159)


def _frame(size: Size, wish: Wish) -> Framing:
    """The part of an image that has the proportions of its bucket."""
    (width, height), wanted = size, wish.resolution[0] / wish.resolution[1]
    if width / height == wanted:
        part = float(width), float(height)
    elif width / height > wanted:
        part = wanted * height, float(height)
    else:
        part = float(width), width / wanted
    left, top = (width - part[0]) * 0.5, (height - part[1]) * 0.5
    return Framing(wish.resolution, (0, 0, *wish.resolution), "bicubic", box=(left, top, left + part[0], top + part[1]))


def _no_files(subject: Subject) -> list[PurePosixPath]:
    """Records have no files of their own."""
    return []


_FROM_IMAGES = (
    "a record also holds latents of its first or last frames alone, and what another model sees in them, which tvae "
    "does not make"
)
_NOT_COMPARED = "its encoder is not the one of diffusers, and tvae's numbers have not been compared with it"

_kl = partial(Architecture, classes=("AutoencoderKL",), factor=8, space="model", resolution=_RESOLUTION, step=16)
_flux = partial(_kl, channels=16, constants=_FLUX)
_flux2 = partial(_kl, classes=("AutoencoderKLFlux2",), channels=32, posterior="mean")
_wan = partial(_kl, classes=_16_CHANNELS, channels=16, posterior="mean")

TRAINER = Trainer(
    name=PICKLED.name,
    code="tdrussell/diffusion-pipe 8f83dbf25d03219df705570ec03e62be04bc402f",
    architectures=(
        _kl("sdxl", channels=4, posterior="sample", constants=(0.13025, 0.0)),
        _kl("auraflow", channels=4, posterior="mean", constants=(0.13025, 0.0)),
        _kl("sd3", channels=16, posterior="sample", constants=(1.5305, 0.0609)),
        *(_flux(name, posterior="sample") for name in ("flux", "chroma", "lumina_2", "hidream", "omnigen2")),
        _flux("z_image", posterior="mean"),
        *(_flux2(name) for name in ("flux2", "flux2_klein_4b", "flux2_klein_9b", "ernie_image")),
        *(_wan(name) for name in ("qwen_image", "krea2")),
        *(_wan(name, fps=16) for name in ("wan", "cosmos_predict2", "anima")),
        _wan("skyreels_v2", fps=24),
        _wan("wan2.2_5b", classes=("AutoencoderKLWan",), channels=48, factor=16, step=32, fps=24),
    ),
    refused={
        **dict.fromkeys(("wan_i2v", "wan_flf2v", "wan2.2_i2v", "skyreels_v2_i2v"), _FROM_IMAGES),
        **dict.fromkeys(("hunyuan_video_1.5", "ltx2", "cosmos"), _NOT_COMPARED),
        "ltx-video": "its cache lies in a folder that is called as the file of the model that is trained",
        "minimax_h3": "a record also holds latents of the sound, which tvae does not make",
        "hunyuan-video": "diffusion-pipe encodes pictures of more than 256 pixels a side in overlapping tiles, whose "
        "blended latents tvae does not make",
    },
    frame=_frame,
    files=_no_files,
    contents=lambda subject, latents: [],
    entry=lambda place, texts: None,
    values=lambda tensors: [],
    one_size=True,
    enlarges=True,
    over_white=True,
    takes_first=True,
    form=PICKLED,
    notes=(
        "a record is found by the table of all images, videos and captions: when one has come, gone or changed, run "
        "tvae again before diffusion-pipe, which would make the whole cache again",
    ),
    failed_note="a bucket where an image or a video has failed has no metadata.db, and diffusion-pipe would make its "
    "cache again: mend or remove what failed, and run tvae again",
)
