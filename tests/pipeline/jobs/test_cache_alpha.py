"""``tvae cache --for kohya --alpha-mask``: the mask and the pixels that sd-scripts has with --alpha_mask.

The oracle is what its ``load_image``, ``trim_and_resize_if_required`` and ``load_images_and_masks_for_caching`` do,
written over again: RGBA by Pillow, scaled with its alpha (larger by Pillow's Lanczos, smaller by OpenCV's INTER_AREA,
which is the mean of squares where sizes divide), cut in the middle, then taken apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import relative_l2

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemSkipped, Job, Notice, run_job

Size = tuple[int, int]
WIDE = Buckets(True, 32, 128, 32)


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("flux", tmp_path_factory.mktemp("flux"))


def cached(model: Any, *inputs: Path, out: Path, trainer: str = "kohya", **fields: Any) -> list[Event]:
    names = {"flip", "architecture", "buckets"}
    wanted = {"buckets": Buckets(False)} | {name: fields.pop(name) for name in [*fields] if name in names}
    mask = fields.pop("alpha_mask", True)
    request = CacheRequest(trainer, alpha_mask=mask, posterior="mean", **wanted)
    job = Job(
        "cache",
        tuple(map(str, inputs)),
        output=str(out),
        vae=str(model.folder),
        dtype="float32",
        cache=request,
        **{"size": (64, 64), **fields},
    )
    events: list[Event] = []
    run_job(job, events.append)
    return events


def ends(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def rgba(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise with alpha from 0 to 255, a part of which is wholly transparent."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    values[: height // 3, :, 3] = 0
    return Image.fromarray(values)


def by_kohya(path: Path, resized: Size, bucket: Size) -> np.ndarray:
    """[h, w, 4] of a file, for a cut in the middle."""
    with Image.open(path) as opened:
        image = opened.convert("RGBA")
    if image.width < resized[0] or image.height < resized[1]:
        pixels = np.asarray(image.resize(resized, Image.Resampling.LANCZOS))
    else:
        whole = np.asarray(image)
        down, across = whole.shape[0] // resized[1], whole.shape[1] // resized[0]
        means = whole.reshape(resized[1], down, resized[0], across, 4).astype(np.float64).mean((1, 3))
        pixels = (np.floor(means + 0.5) if down == across == 2 else np.rint(means)).astype(np.uint8)
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    return pixels[top : top + bucket[1], left : left + bucket[0]]


def check(model: Any, found: dict[str, np.ndarray], pixels: np.ndarray, *, flux: bool, flip: bool = False) -> None:
    height, width = pixels.shape[:2]
    end = f"_{height // 8}x{width // 8}" if flux else ""
    names = {"latents", "original_size", "crop_ltrb", "alpha_mask", *({"latents_flipped"} if flip else ())}
    assert found.keys() == {f"{name}{end}" for name in names}
    mask = found[f"alpha_mask{end}"]
    assert mask.dtype == np.float32
    assert np.array_equal(mask, pixels[..., 3].astype(np.float32) / 255.0)
    seen = torch.from_numpy(pixels[..., :3].astype(np.float64)).permute(2, 0, 1).unsqueeze(0)
    for name, given in {"latents": seen, **({"latents_flipped": seen.flip(3)} if flip else {})}.items():
        mean = reference(model, given)[0][0]
        wanted = (mean - 0.1159) * 0.3611 if flux else mean
        assert relative_l2(torch.from_numpy(found[f"{name}{end}"]), wanted) < 1e-5


@pytest.mark.parametrize(
    ("size", "resized"),
    [((192, 128), (96, 64)), ((288, 192), (96, 64)), ((64, 64), (64, 64)), ((40, 32), (80, 64)), ((96, 64), (96, 64))],
)
@pytest.mark.parametrize("name", ["sdxl", "flux"])
def test_pixels_and_mask(name: str, size: Size, resized: Size, sdxl: Any, flux: Any, tmp_path: Path) -> None:
    """The mask is never mirrored: sd-scripts turns it round when it reads the mirrored latents."""
    model = flux if name == "flux" else sdxl
    rgba(*size).save(source := tmp_path / "a.png")
    (done,) = ends(cached(model, source, out=tmp_path / "out", flip=True, architecture=name), ItemDone)
    pixels = by_kohya(source, resized, (64, 64))
    check(model, arrays(done.output), pixels, flux=name == "flux", flip=True)


def jpeg(path: Path) -> None:
    rgba(48, 32).convert("RGB").save(path, format="JPEG", quality=95)


def palette(path: Path) -> None:
    rgba(48, 32).convert("RGB").quantize(8).save(path, format="PNG", transparency=bytes([0, 40, 255, 9]))


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # which sd-scripts does not look at
    rgba(48, 32).save(path, format="PNG", exif=exif)


@pytest.mark.parametrize("sandbox", ["off", "on"])
@pytest.mark.parametrize("write", [jpeg, palette, turned])
def test_other_images(write: Callable[[Path], None], sandbox: str, sdxl: Any, tmp_path: Path) -> None:
    write(source := tmp_path / "a.png")
    events = cached(sdxl, source, out=tmp_path / "out", sandbox=sandbox)
    (done,) = ends(events, ItemDone)
    pixels = by_kohya(source, (96, 64), (64, 64))
    check(sdxl, arrays(done.output), pixels, flux=False)
    assert (pixels[..., 3] == 255).all() == (write is jpeg)
    assert ends(events, Notice) == []  # nothing is told as dropped


def test_with_and_without_are_two(sdxl: Any, tmp_path: Path) -> None:
    rgba(64, 64).save(source := tmp_path / "a.png")
    out = tmp_path / "out"

    def made(alpha_mask: bool) -> bool:
        events = cached(sdxl, source, out=out, alpha_mask=alpha_mask)
        assert len(ends(events, ItemDone)) + len(ends(events, ItemSkipped)) == 1
        return bool(ends(events, ItemDone))

    file, record = out / "a_0064x0064_sdxl.npz", out / ".tvae-cache" / ".kohya-sdxl" / "a.png.json"
    assert made(False)
    assert "alpha_mask" not in arrays(file)
    assert "alpha_mask" not in json.loads(record.read_text())["options"]  # as an older tvae wrote it
    assert made(True)
    assert "alpha_mask" in arrays(file)
    assert not made(True)
    assert made(False)
    assert "alpha_mask" not in arrays(file)


@pytest.mark.long
def test_colours_without_the_option_are_as_before(sdxl: Any, tmp_path: Path) -> None:
    """An image without alpha gives the same latents either way, enlarged or not."""
    for n, size in enumerate([(40, 32), (192, 128)]):
        rgba(*size).convert("RGB").save(source := tmp_path / f"{n}.png")
        found = [
            arrays(ends(cached(sdxl, source, out=tmp_path / str(mask), alpha_mask=mask), ItemDone)[0].output)
            for mask in (False, True)
        ]
        assert np.array_equal(found[0]["latents"], found[1]["latents"])
        assert (found[1]["alpha_mask"] == 1).all()


@pytest.mark.parametrize("trainer", ["ai-toolkit", "comfy", "simpletuner", "webdataset"])
def test_other_trainers_keep_none(trainer: str, sdxl: Any, tmp_path: Path) -> None:
    rgba(64, 64).save(source := tmp_path / "a.png")
    with pytest.raises(UsageError, match=f"{trainer} keeps no alpha in its cache; leave --alpha-mask out"):
        cached(sdxl, source, out=tmp_path / "out", trainer=trainer, architecture=None, buckets=Buckets())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("write", [lambda path: rgba(40, 32).save(path), palette])
def test_musubi_weighs_colours_by_alpha_where_it_enlarges(
    write: Callable[[Path], None], flux: Any, tmp_path: Path
) -> None:
    """It leaves RGBA to Pillow and drops the alpha of the result; any other mode becomes RGB before."""
    write(source := tmp_path / "a.png")
    (done,) = ends(
        cached(flux, source, out=tmp_path / "out", trainer="musubi", architecture="zi", alpha_mask=False), ItemDone
    )
    with Image.open(source) as opened:
        image = opened if opened.mode == "RGBA" else opened.convert("RGBA").convert("RGB")
        width = 64 * image.width // image.height
        pixels = np.asarray(image.resize((width, 64), Image.Resampling.LANCZOS))[:, (width - 64) // 2 :][:, :64, :3]
    (found,) = load_file(done.output).values()
    mean = reference(flux, torch.from_numpy(pixels.astype(np.float64)).permute(2, 0, 1).unsqueeze(0))[0]
    assert relative_l2(found, mean[0]) < 1e-5
