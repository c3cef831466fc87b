"""Metadata that the tests of the latent files start from."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tvae.pipeline.latents import (
    Geometry,
    LatentsMeta,
    PosteriorRecord,
    SourceRecord,
    SpaceRecord,
    VaeIdentity,
)
from tvae.pipeline.media import Colour


@pytest.fixture
def image_meta() -> LatentsMeta:
    """A 21x13 picture, padded to 24x16: raw latents [4, 2, 3]."""
    return LatentsMeta(
        kind="image",
        vae=VaeIdentity("builtin", "AutoencoderKL", "c" * 64, "a" * 64, 4, 8, None),
        space=SpaceRecord("raw", {"shift": [0.0], "scale": [0.18215], "frames": 1, "patch": 1}),
        posterior=PosteriorRecord("mean"),
        dtype="float32",
        source=SourceRecord("ä photo.jpg", 12345, 1_700_000_000_123_456_789),
        geometry=Geometry(42, 30, resized=(21, 15), crop=(0, 1, 21, 13), pad=(0, 0, 3, 3)),
        colour=Colour(matrix="bt709", range="tv"),
        rotation=90,
        mirrored=True,
        sample_aspect_ratio=Fraction(4, 3),
        options={"align": "pad", "size": [21, 13], "audio": None},
        tool="tvae 0.1.0",
    )


@pytest.fixture
def clip_meta(image_meta: LatentsMeta) -> LatentsMeta:
    """The same picture as a clip, through an image VAE."""
    from dataclasses import replace

    return replace(image_meta, kind="video", time_base=Fraction(1, 90000), frame_rate=Fraction(30000, 1001))
