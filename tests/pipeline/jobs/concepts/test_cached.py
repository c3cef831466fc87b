"""Caches of OneTrainer's concepts, written by whole jobs: names, numbers, types, and the model's own latents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import saved
from concepts import XL, cached, concept, files_in, photo
from PIL import Image
from tiny_vaes import relative_l2

from tvae.pipeline.caches.concepts.concept import concept_of
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


def key(data: dict[str, Any]) -> str:
    found = concept_of(data, "c")
    assert found is not None
    return found.key


def ends(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def latents(model: Any, values: np.ndarray) -> torch.Tensor:
    """Of pixels [H, W, 3] from 0 to 1, by the model's own call in float64."""
    pixels = torch.from_numpy(values).double().permute(2, 0, 1).unsqueeze(0) * 2 - 1
    wide = model.double()
    try:
        with torch.no_grad():
            return wide.encode(pixels).latent_dist.mean[0]
    finally:
        model.float()


def halved(path: Path) -> np.ndarray:
    """As triangles over four pixels a side give it, edges apart."""
    rgb = np.asarray(Image.open(path).convert("RGB")) / 255.0
    weights = np.array([1, 3, 3, 1]) / 8
    height, width, _ = rgb.shape
    padded = np.pad(rgb, ((1, 1), (1, 1), (0, 0)), constant_values=np.nan)
    kept = ~np.isnan(padded)
    total, weight = np.zeros((height // 2, width // 2, 3)), np.zeros((height // 2, width // 2, 3))
    for y in range(4):
        for x in range(4):
            part = (slice(y, y + height - 1, 2), slice(x, x + width - 1, 2))
            share = weights[y] * weights[x]
            total += share * np.where(kept[part], padded[part], 0)
            weight += share * kept[part]
    return total / weight


def test_the_numbers_are_the_models_own(sdxl: Any, tmp_path: Path) -> None:
    wide = photo(tmp_path / "in" / "a.png", 288, 256, 1)
    square = photo(tmp_path / "in" / "b.png", 256, 256, 2)
    data = concept(tmp_path / "in", image={"enable_fixed_flip": True})
    cached(sdxl, [data], tmp_path / "out")
    found = files_in(tmp_path / "out")
    folder = f"{key(data)}/variation-0"
    assert [*found] == [f"{folder}/{name}.pt" for name in ("0", "1", "aggregate")]
    first = found[f"{folder}/0.pt"]
    assert first["latent_image"].dtype == torch.float32
    assert (first["original_resolution"], first["crop_offset"]) == ((256, 288), (0, 8))
    seen = halved(wide)[:, 8:136][:, ::-1].copy()
    assert relative_l2(first["latent_image"], latents(sdxl, seen)) < 1e-5
    seen = halved(square)[:, ::-1].copy()
    assert relative_l2(found[f"{folder}/1.pt"]["latent_image"], latents(sdxl, seen)) < 1e-5
    assert found[f"{folder}/aggregate.pt"] == [
        {"crop_resolution": (128, 128), "image_path": os.path.join(data["path"], name)} for name in ("a.png", "b.png")
    ]


@pytest.mark.parametrize("fields", [{"strip": 1, "vram": "4GiB"}, {"batch": 1}])
def test_strips_and_batches_change_nothing(sdxl: Any, tmp_path: Path, fields: dict[str, Any]) -> None:
    photo(tmp_path / "in" / "a.png", 400, 300, 1)
    cached(sdxl, [concept(tmp_path / "in")], tmp_path / "usual")
    cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out", **fields)
    (usual, _), (found, _) = (files_in(tmp_path / name).values() for name in ("usual", "out"))
    assert relative_l2(found["latent_image"], usual["latent_image"].double()) < 2e-6


def test_repeats_and_variations_and_two_concepts_on_one_folder(sdxl: Any, tmp_path: Path) -> None:
    for n in range(2):
        photo(tmp_path / "bücher" / f"ü{n}.png", 192 + 64 * n, 128, n)
    jitter = {"enable_crop_jitter": True}
    first = concept(tmp_path / "bücher", 1, jitter, image_variations=2, balancing=2.5)
    second = concept(tmp_path / "bücher", 2, jitter, balancing=30, balancing_strategy="SAMPLES")
    off = concept(tmp_path / "bücher", 3, enabled=False)
    events = cached(sdxl, [off, first, second], tmp_path / "out")
    assert len(ends(events, ItemDone)) == 6
    found = files_in(tmp_path / "out")
    folders = {name.rpartition("/")[0] for name in found}
    assert folders == {f"{key(first)}/variation-0", f"{key(first)}/variation-1", f"{key(second)}/variation-0"}
    offsets = [found[f"{folder}/1.pt"]["crop_offset"] for folder in sorted(folders)]
    assert len({*offsets}) > 1  # chance has it otherwise for each


def test_a_photo_is_turned_upright(sdxl: Any, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(tmp_path / "in" / "a.jpg", 128, 64, exif=exif)
    cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out")
    (entry, whole) = files_in(tmp_path / "out").values()
    assert entry["original_resolution"] == (128, 64)
    assert whole[0]["crop_resolution"] == (192, 128)


def test_what_onetrainer_would_read_otherwise_is_refused(sdxl: Any, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(tmp_path / "in" / "a.webp", exif=exif)
    deep = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    Image.fromarray(deep).save(tmp_path / "in" / "b.png")
    photo(tmp_path / "in" / "c.png")
    failed = ends(events := cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out"), ItemFailed)
    told = {event.input.name: event.error for event in failed}
    assert "OneTrainer does not turn WebP" in told["a.webp"]
    assert "16 bits" in told["b.png"]
    assert [event.input.name for event in ends(events, ItemDone)] == ["c.png"]


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"train_dtype": "BFLOAT_16"}, torch.bfloat16),
        ({"train_dtype": "FLOAT_32"}, torch.float32),
        ({"train_dtype": "FLOAT_16", "fallback_train_dtype": "BFLOAT_16"}, torch.bfloat16),
    ],
)
def test_a_configuration_says_the_type(sdxl: Any, tmp_path: Path, config: dict[str, Any], dtype: torch.dtype) -> None:
    photo(tmp_path / "in" / "a.png")
    config = {"model_type": XL, "resolution": "128", **config}
    cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out", config=config)
    (entry, _) = files_in(tmp_path / "out").values()
    assert entry["latent_image"].dtype == dtype


def test_several_resolutions_and_one_of_a_concept(sdxl: Any, tmp_path: Path) -> None:
    for n in range(8):
        photo(tmp_path / "in" / f"{n}.png", 128, 128, n)
    image = {"enable_resolution_override": True, "resolution_override": "192x128"}
    config = {"model_type": XL, "resolution": "128, 256", "train_dtype": "FLOAT_32"}
    concepts = [concept(tmp_path / "in"), concept(tmp_path / "in", 2, image)]
    cached(sdxl, concepts, tmp_path / "out", config=config)
    found = {name: value for name, value in files_in(tmp_path / "out").items() if name.endswith("aggregate.pt")}
    one, other = (found[f"{key(each)}/variation-0/aggregate.pt"] for each in concepts)
    assert {row["crop_resolution"] for row in one} == {(128, 128), (256, 256)}
    assert {row["crop_resolution"] for row in other} == {(128, 192)}


def test_a_dry_run_tells_the_files_and_makes_none(sdxl: Any, tmp_path: Path) -> None:
    photo(tmp_path / "in" / "a.png")
    data = concept(tmp_path / "in", image_variations=2)
    planned = ends(cached(sdxl, [data], tmp_path / "out", dry_run=True), ItemPlanned)
    folder = tmp_path / "out" / "image" / key(data)
    assert [event.output for event in planned] == [folder / f"variation-{n}" / "0.pt" for n in (0, 1)]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"architecture": "HUNYUAN_VIDEO"}, "writes no cache of onetrainer for HUNYUAN_VIDEO: .* overlapping tiles"),
        ({"architecture": "FLUX_FILL_DEV_1"}, "masks and conditioning images"),
        ({"architecture": "QWEN"}, "is not onetrainer's for QWEN"),
        ({"architecture": "SDXL"}, "no architecture 'SDXL'"),
        ({"architecture": None}, "say which with --arch"),
        ({"existing": "keep"}, "leave --no-clobber out"),
        (
            {"config": {"model_type": XL, "resolution": "128x192", "aspect_ratio_bucketing": False}},
            "needs aspect ratio",
        ),
        ({"config": {"model_type": XL, "resolution": "64;96"}}, "is no resolution"),
        ({"devices": "cpu,cpu"}, "caches of concepts, too: leave --devices"),
        ({"claim": True}, "leave --devices and --claim out"),
    ],
)
def test_refused_before_any_work(sdxl: Any, tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    photo(tmp_path / "in" / "a.png")
    with pytest.raises(UsageError, match=told):
        cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out", **fields)
    assert not (tmp_path / "out").exists()


def test_concepts_without_images_are_refused(sdxl: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(UsageError, match=r"no image in the concepts of .* that are switched on"):
        cached(sdxl, [concept(tmp_path / "in"), concept("nowhere", enabled=False)], tmp_path / "out")


def test_records_say_what_an_entry_was_made_of(sdxl: Any, tmp_path: Path) -> None:
    photo(tmp_path / "in" / "a.png")
    cached(sdxl, [concept(tmp_path / "in")], tmp_path / "out")
    (place,) = (tmp_path / "out" / ".tvae-cache").rglob("*.json")
    record = json.loads(place.read_text())
    assert [file["file"].rpartition("/")[2] for file in record["files"]] == ["0.pt", "aggregate.pt"]
    assert record["options"]["size"] == [128, 128]
    assert record["source"]["name"] == "a.png"
