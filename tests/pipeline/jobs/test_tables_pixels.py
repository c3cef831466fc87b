"""What diffusion-pipe's encoder sees of all kinds of images: laid over white, as they are stored, fitted by Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from PIL import Image, ImageOps
from stand_in_tables import records, stood_in
from tiny_vaes import relative_l2

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.jobs import Job, run_job


def pictures(folder: Path) -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (20, 26, 4), dtype=np.uint8)
    rgba = Image.fromarray(coarse).resize((78, 60))
    rgb, turned, palette = rgba.convert("RGB"), Image.Exif(), rgba.convert("RGB").quantize(16)
    turned[0x112] = 6
    kinds = {"rgb.png": rgb, "grey.png": rgb.convert("L"), "one.png": rgb.convert("1"), "palette.png": palette}
    kinds |= {"alpha.png": rgba, "grey_alpha.png": rgba.convert("LA"), "cmyk.jpg": rgb.convert("CMYK")}
    kinds |= {"small.png": rgb.resize((30, 21)), "exact.png": rgb.resize((64, 64)), "wide.png": rgb.resize((300, 40))}
    for name, picture in kinds.items():
        picture.save(folder / name)
    rgb.save(folder / "turned.jpg", exif=turned)
    palette.save(folder / "palette_hole.png", transparency=3)
    rgb.save(folder / "colour_hole.png", transparency=rgb.getpixel((5, 5)))
    rgb.convert("L").save(folder / "grey_hole.png", transparency=rgb.convert("L").getpixel((5, 5)))
    rgba.save(folder / "alpha.webp", lossless=True)


def animations(folder: Path) -> None:
    """Of three pictures, the first of which counts."""
    coarse = np.random.default_rng(1).integers(0, 256, (3, 20, 26, 4), dtype=np.uint8)
    shown = [Image.fromarray(one).resize((78, 60)) for one in coarse]
    plain = [one.convert("RGB").quantize(16) for one in shown]
    plain[0].save(folder / "moving.gif", save_all=True, append_images=plain[1:], duration=40, loop=0)
    plain[0].save(folder / "hole.gif", save_all=True, append_images=plain[1:], transparency=3, disposal=2)
    shown[0].save(folder / "clear.gif", save_all=True, append_images=shown[1:], disposal=2)
    shown[0].save(folder / "moving.png", save_all=True, append_images=shown[1:])
    shown[0].save(folder / "apart.png", save_all=True, append_images=shown[1:], default_image=True)
    shown[0].save(folder / "moving.WEBP", save_all=True, append_images=shown[1:], lossless=True)


def seen(path: str) -> Image.Image:
    """Only colours with an alpha channel, and greys and palettes with a hole, have anything to lay over white."""
    with Image.open(path) as picture:
        picture.load()
    if picture.mode == "RGBA" or (picture.mode != "RGB" and "transparency" in picture.info):
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return ImageOps.fit(picture.convert("RGB"), (64, 64))


@pytest.mark.parametrize(
    ("sandbox", "made", "many"), [("auto", pictures, 15), ("auto", animations, 6), ("on", animations, 6)]
)
def test_every_kind(sandbox: Any, made: Any, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stood_in(monkeypatch)
    model = saved("sdxl", Path("vae"))
    Path("kinds").mkdir()
    made(Path("kinds"))
    Path("dataset.toml").write_text("resolutions = [64]\nskip_empty_caption = false\n[[directory]]\npath = 'kinds'\n")
    request = CacheRequest("diffusion-pipe", "auraflow")
    job = Job("cache", ("dataset.toml",), cache=request, vae="vae", dtype="float32", sandbox=sandbox)
    run_job(job, lambda _event: None)
    found = records(Path("kinds/cache/auraflow/cache_1.000x64x64x1/latents"))
    assert len(found) == many
    for one in found:
        pixels = torch.from_numpy(np.array(seen(one["image_spec"][1]))).permute(2, 0, 1).unsqueeze(0)
        wanted = reference(model, pixels)[0][0] * 0.13025
        assert relative_l2(one["latents"], wanted) < 1e-5, one["image_spec"]
