"""The README's picture: what blended tiles and strips each change in the decode of one photo.

``python tests/benchmarks/picture.py PHOTO.png --out .github/picture.jpg``

The built-in VAE encodes the photo. Its latents are then decoded three times in float32 on the CPU: whole (the
reference), by diffusers' ``enable_tiling``, and by ``TiledVAE``. The first two panels show the absolute errors of tiles
and of ``TiledVAE`` against the reference, both multiplied by the same factor. The third panel shows the reference.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.load import load_module, locate_vae

LEVELS = 127.5
"""8-bit levels in one unit of the VAE's range, which is [-1, 1]."""
MARGIN = 8
CAPTION = 76
"""Height in pixels of the text under a panel."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Decode, print the errors, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", type=Path, help="512 to 768 pixels a side, in multiples of 8")
    parser.add_argument("--out", type=Path, default=Path(".github/picture.jpg"))
    parser.add_argument(
        "--tile", type=int, default=256, help="side of diffusers' tiles in pixels; 256 is its default here"
    )
    parser.add_argument("--factor", type=int, default=4, help="what both errors are multiplied by")
    parser.add_argument("--width", type=int, default=600, help="of a panel in the picture")
    asked = parser.parse_args(arguments)

    whole, tiled, ours = decodes(read(asked.photo), asked.tile)
    for name, result in (("blended tiles", tiled), ("tvae", ours)):
        error = (result - whole).abs()
        relative = float((result - whole).norm() / whole.norm())
        mean, largest = float(error.mean()) * LEVELS, float(error.max()) * LEVELS
        print(f"{name}: relative L2 {relative:.2g}, mean {mean:.2g} and largest {largest:.2g} levels of 255")

    by = f"error, multiplied by {asked.factor}"
    panels = (
        (error_image(tiled, whole, asked.factor), f"diffusers, blended tiles of {asked.tile} pixels", by),
        (error_image(ours, whole, asked.factor), "tvae in strips", by),
        (to_image(whole), "decoded photo", "untiled: the reference for both"),
    )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    side_by_side(panels, asked.width).save(asked.out, quality=85, optimize=True)
    print(f"{asked.out}: {asked.out.stat().st_size / 1000:.0f} kB")


def read(path: Path) -> Tensor:
    """The photo as float32 [1, 3, H, W] in [-1, 1]."""
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
    return pixels.permute(2, 0, 1)[None].float() / LEVELS - 1


@torch.no_grad()
def decodes(photo: Tensor, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same latents decoded whole, by diffusers' blended tiles of ``tile`` pixels, and by tvae in strips."""
    vae = load_module(locate_vae("builtin"), torch.float32)
    latents = vae.encode(photo).latent_dist.mean
    whole = vae.decode(latents).sample
    ours = TiledVAE(vae, strip=8).decode(latents).sample
    vae.tile_sample_min_size, vae.tile_latent_min_size = tile, tile // 8
    vae.enable_tiling()
    tiled = vae.decode(latents).sample
    return whole, tiled, ours


def to_image(values: Tensor) -> Image.Image:
    """[1, 3, H, W] in [-1, 1] -> 8-bit RGB."""
    levels = ((values[0] + 1) * LEVELS).round().clamp(0, 255)
    return Image.fromarray(levels.to(torch.uint8).permute(1, 2, 0).numpy())


def error_image(result: Tensor, reference: Tensor, factor: int) -> Image.Image:
    """The absolute difference, ``factor`` times; black is none."""
    return to_image((result - reference).abs() * factor - 1)


def side_by_side(panels: Sequence[tuple[Image.Image, str, str]], width: int) -> Image.Image:
    """Panels in one row, each with two lines of text under it."""
    height = round(panels[0][0].height * width / panels[0][0].width)
    sheet = Image.new("RGB", (len(panels) * (width + MARGIN) + MARGIN, height + 2 * MARGIN + CAPTION), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=28)
    for index, (image, *lines) in enumerate(panels):
        left = MARGIN + index * (width + MARGIN)
        sheet.paste(image.resize((width, height), Image.Resampling.LANCZOS), (left, MARGIN))
        draw.multiline_text((left, height + MARGIN + 4), "\n".join(lines), fill="black", font=font, spacing=4)
    return sheet


if __name__ == "__main__":
    main()
