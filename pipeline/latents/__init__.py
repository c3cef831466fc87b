"""The latent files of tvae: one safetensors file for an image, a folder of them for a clip.

::

    a.jpg.safetensors          tensor `latents` [C, h, w], or `mean` and `logvar`
    b.mp4.latents/
        000000.safetensors     [C, t, h, w]; complete on its own, with its frames' timestamps
        000001.safetensors
        streams.*              the source's other streams, untouched (written by `media.copy_streams`)
        index.json             written last: its presence is the commit

Every file says which VAE made it, in which space it is, from which source, and everything that a decode needs.
Nothing but safetensors is needed to read one.
"""

from __future__ import annotations

from tvae.pipeline.latents.alpha import alpha_text
from tvae.pipeline.latents.image_file import IMAGE_SUFFIX, check_image_place, write_image_latents
from tvae.pipeline.latents.meta import (
    Geometry,
    LatentsMeta,
    PartRecord,
    PosteriorRecord,
    SourceRecord,
    SpaceRecord,
    VaeIdentity,
    fingerprint,
)
from tvae.pipeline.latents.reader import (
    LatentsPart,
    LatentsReader,
    check_vae,
    is_latents,
    latents_done,
    open_latents,
    same_vae,
    source_of,
)
from tvae.pipeline.latents.said import said_of_latents
from tvae.pipeline.latents.video_folder import (
    VIDEO_SUFFIX,
    VideoLatentsWriter,
    check_folder_place,
    is_part_name,
    tidy_done,
)

__all__ = [
    "IMAGE_SUFFIX",
    "VIDEO_SUFFIX",
    "Geometry",
    "LatentsMeta",
    "LatentsPart",
    "LatentsReader",
    "PartRecord",
    "PosteriorRecord",
    "SourceRecord",
    "SpaceRecord",
    "VaeIdentity",
    "VideoLatentsWriter",
    "alpha_text",
    "check_folder_place",
    "check_image_place",
    "check_vae",
    "fingerprint",
    "is_latents",
    "is_part_name",
    "latents_done",
    "open_latents",
    "said_of_latents",
    "same_vae",
    "source_of",
    "tidy_done",
    "write_image_latents",
]
