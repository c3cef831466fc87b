"""Sizes and files of OneTrainer, as mgds's ``AspectBucketing`` and ``SingleAspectCalculation`` gave them."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
import torch

from tvae.pipeline.caches import TRAINERS, Buckets, Subject
from tvae.pipeline.caches.spec import Wish
from tvae.pipeline.files.stored import Pickled

TRAINER = TRAINERS["onetrainer"]
KNOWN = {one.name: one for one in TRAINER.architectures}
ALONE = {"STABLE_DIFFUSION_15", "STABLE_DIFFUSION_20", "STABLE_DIFFUSION_20_BASE", "STABLE_DIFFUSION_21"} | {
    *("STABLE_DIFFUSION_21_BASE", "PIXART_ALPHA", "PIXART_SIGMA", "SANA")
}
WITH_SIZES = {"STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35", "FLUX_DEV_1", "CHROMA_1"} | {
    *("HI_DREAM_FULL", "Z_IMAGE", "FLUX_2", "ERNIE", "IDEOGRAM_4")
}
TIMED = {"QWEN", "ANIMA", "KREA_2"}
STEPS = {
    **dict.fromkeys(ALONE, 8),
    **dict.fromkeys(WITH_SIZES | TIMED, 64),
    "PIXART_ALPHA": 16,
    "PIXART_SIGMA": 16,
    "SANA": 32,
}
Size = tuple[int, int]
GOLDEN: list[tuple[str, Size, list[tuple[Size, Size, Size]]]] = [
    (
        "STABLE_DIFFUSION_15",
        (512, 512),
        [
            ((640, 480), (608, 456), (576, 456)),
            ((100, 100), (512, 512), (512, 512)),
            ((333, 1000), (296, 889), (296, 888)),
            ((1921, 1080), (683, 384), (680, 384)),
            ((50, 400), (256, 2048), (256, 1024)),
            ((512, 511), (513, 512), (512, 512)),
        ],
    ),
    (
        "QWEN",
        (1024, 1024),
        [
            ((640, 480), (1195, 896), (1152, 896)),
            ((1000, 3999), (512, 2048), (512, 2048)),
            ((1200, 1000), (1152, 960), (1152, 896)),
            ((1921, 1080), (1366, 768), (1344, 768)),
            ((5000, 400), (6400, 512), (2048, 512)),
            ((1025, 1024), (1025, 1024), (1024, 1024)),
        ],
    ),
    (
        "SANA",
        (1000, 1000),
        [
            ((640, 480), (1195, 896), (1120, 896)),
            ((1000, 3999), (512, 2047), (512, 1984)),
            ((1125, 1000), (1120, 996), (1120, 896)),
        ],
    ),
    (
        "PIXART_ALPHA",
        (500, 333),
        [((640, 480), (496, 372), (496, 336)), ((333, 1000), (496, 1489), (496, 336))],
    ),
]
WITHOUT_BUCKETS = [((640, 480), (683, 512)), ((333, 1000), (512, 1538)), ((512, 513), (512, 513))]


@pytest.mark.parametrize(("name", "resolution", "sizes"), GOLDEN)
def test_golden_sizes(name: str, resolution: Size, sizes: list[tuple[Size, Size, Size]]) -> None:
    for size, resized, bucket in sizes:
        found = TRAINER.frame(size, Wish(KNOWN[name], resolution, Buckets(), True))
        assert (found.resized, found.size) == (resized, bucket)
        assert found.crop[:2] == ((resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2)


@pytest.mark.parametrize(("size", "resized"), WITHOUT_BUCKETS)
def test_golden_sizes_without_buckets(size: Size, resized: Size) -> None:
    found = TRAINER.frame(size, Wish(KNOWN["STABLE_DIFFUSION_15"], (512, 512), Buckets(False), True))
    assert (found.resized, found.size) == (resized, (512, 512))


def test_a_resolution_too_small_for_buckets() -> None:
    with pytest.raises(ValueError, match="too small a resolution"):
        TRAINER.frame((100, 400), Wish(KNOWN["FLUX_2"], (50, 50), Buckets(), True))


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_file_holds(name: str) -> None:
    one = KNOWN[name]
    framing = TRAINER.frame((640, 480), Wish(one, (256, 256), Buckets(), True))
    place = PurePosixPath("image", "a" * 64, "variation-0", "3.pt")
    subject = Subject(place, (640, 480), framing, one)
    assert TRAINER.files(subject) == [place]
    assert TRAINER.entry(place, {}) is not None
    (content,) = TRAINER.contents(subject, [torch.zeros(one.channels or 0, 1, 6, 8)])
    assert isinstance(content, Pickled)
    assert isinstance(content.values, dict)
    latent = content.values.pop("latent_image")
    assert latent.shape == ((one.channels, 1, 6, 8) if name in TIMED else (one.channels, 6, 8))
    sizes = {} if name in ALONE else {"original_resolution": (480, 640), "crop_offset": framing.crop[1::-1]}
    if name in TIMED:
        sizes["original_resolution"] = (1, 480, 640)
    assert content.values == sizes
    assert one.step == STEPS[name]


def test_every_architecture_is_here() -> None:
    assert {*KNOWN} == ALONE | WITH_SIZES | TIMED


@pytest.mark.parametrize("name", ["aggregate.pt", "3.txt", "x3.pt"])
def test_what_is_none_of_its_latents(name: str) -> None:
    assert TRAINER.entry(PurePosixPath("image", "a" * 64, "variation-0", name), {}) is None
