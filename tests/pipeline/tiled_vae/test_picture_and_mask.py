"""``AsymmetricAutoencoderKL.decode`` with a picture and a mask, which says where the picture is to be replaced."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from slow_but import slow_but
from tiny_pipelines import inpainting
from tiny_vaes import TINY, relative_l2, waves
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import reference_mode
from tvae.pipeline.session import new_graph

TINY_ONE = TINY["AsymmetricAutoencoderKL"]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> Any:
    return TINY_ONE.build()


def inputs(height: int, width: int, batch: int = 1, masks: int | None = None, seed: int = 3) -> dict[str, Tensor]:
    """Latents, a picture and a mask with an edge inside latents, a hole and single pixels."""
    pixels = 8 * height, 8 * width
    noise = torch.rand(masks or batch, 1, *pixels, generator=torch.Generator().manual_seed(seed))
    mask = (noise > 0.97).float()
    mask[..., pixels[0] // 3 + 1 :, : pixels[1] // 2 + 3] = 1.0
    mask[..., -5:-2, 2:5] = 0.0
    picture = waves((batch, 3, *pixels), seed).clamp(-1, 1)
    return {"z": waves((batch, 4, height, width), seed + 1), "image": picture, "mask": mask}


def reference64(model: Any, given: dict[str, Tensor]) -> Tensor:
    """The module's own call in float64."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad(), reference_mode(wide):
        result: Tensor = wide.decode(**{name: t.double() for name, t in given.items()}).sample
    return result


@pytest.mark.long
@pytest.mark.parametrize("strip", slow_but([3], [1, 3, 7]))
def test_it_is_the_modules_own_call_in_strips_at_every_size(model: Any, strip: int) -> None:
    """Of one capture."""
    tiled = TiledVAE(model, strip=strip)
    for size in ((8, 6), (11, 5), (23, 4)):
        given = inputs(*size)
        shape = tuple(given["z"].shape)
        assert tiled.plan(shape, "decode", image=given["image"], mask=given["mask"]).strip_rows == strip
        assert relative_l2(tiled.decode(**given).sample, reference64(model, given)) <= TOLERANCE, size


@pytest.mark.long
def test_sizes_share_a_graph(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    right = new_graph.capture
    monkeypatch.setattr(new_graph, "capture", lambda *args: made.append(right(*args)) or made[-1])
    # another configuration: no graph of it is on disk
    model = type(model)(**{**TINY_ONE.config, "scaling_factor": 0.3, "layers_per_up_block": 2}).eval()
    tiled = TiledVAE(model, strip=2)
    for size in ((8, 6), (6, 8), (5, 5), (13, 2)):
        given = inputs(*size)
        assert relative_l2(tiled.decode(**given).sample, reference64(model, given)) <= TOLERANCE, size
    assert len(made) == 1
    assert made[0].fixed is None


@pytest.mark.long
@pytest.mark.parametrize(("height", "width"), [(1, 5), (6, 1), (1, 1)])
def test_latents_of_a_few_pixels(model: Any, height: int, width: int) -> None:
    given = inputs(height, width)
    assert relative_l2(TiledVAE(model, strip=2).decode(**given).sample, reference64(model, given)) <= TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("masks", slow_but([2], [1, 2]))
def test_several_pictures_with_a_mask_each_or_one_for_all(model: Any, masks: int) -> None:
    given = inputs(7, 5, batch=2, masks=masks)
    assert relative_l2(TiledVAE(model, strip=2).decode(**given).sample, reference64(model, given)) <= TOLERANCE


@pytest.mark.long
def test_the_mask_decides_and_one_alone_does_nothing(model: Any) -> None:
    """As in the model: what is given alone is not looked at. And a mask between 0 and 1."""
    tiled, given = TiledVAE(model, strip=3), inputs(8, 6)
    z, image, mask = given.values()
    plain, both = tiled.decode(z).sample, tiled.decode(**given).sample
    assert relative_l2(both, plain) > 0.05, "or the test could not fail"
    for one in ({"image": image}, {"mask": mask}):
        assert relative_l2(tiled.decode(z, **one).sample, plain) <= TOLERANCE
    for other in (torch.ones_like(mask), 1 - mask, 0.2 + mask / 2, mask.to(torch.uint8)):
        found = tiled.decode(z, image=image, mask=other).sample
        assert relative_l2(found, both) > 1e-3 or other.dtype == torch.uint8
        assert relative_l2(found, reference64(model, {**given, "mask": other})) <= TOLERANCE


@pytest.mark.long
def test_all_ways_to_call_it(model: Any) -> None:
    tiled, given = TiledVAE(model, strip=3), inputs(8, 6)
    z, image, mask = given.values()
    want = tiled.decode(z, image=image, mask=mask).sample
    generator = torch.Generator().manual_seed(5)
    for made in (
        tiled.decode(z, None, image, mask).sample,
        tiled.decode(z, generator, image, mask, True).sample,
        tiled.decode(z, return_dict=False, generator=generator, image=image, mask=mask)[0],
        tiled.decode(z, generator, image, mask, False)[0],
    ):
        assert torch.equal(made, want)
    with torch.no_grad():  # forward encodes, and decodes with the picture itself
        wide = copy.deepcopy(model).double()
        assert relative_l2(tiled(image, mask).sample, wide(image.double(), mask.double()).sample) <= TOLERANCE


@pytest.mark.long
def test_strips_need_less_memory(model: Any) -> None:
    given = inputs(40, 6)
    shape, more = tuple(given["z"].shape), {"image": given["image"], "mask": given["mask"]}
    low, whole = (TiledVAE(model, strip=strip).plan(shape, "decode", **more) for strip in (2, 40))
    assert low.peak_bytes < 0.8 * whole.peak_bytes
    assert low.strip_rows == 2


@pytest.mark.long
def test_diffusers_inpainting_pipeline_gives_the_same_picture() -> None:
    pipeline, call = inpainting()
    own = pipeline.vae
    plain = [pipeline(**call(*size)).images for size in ((64, 48), (72, 40))]
    assert all(image.std() > 1e-3 for image in plain)
    calls: list[set[str]] = []

    class Noted(TiledVAE):
        def decode(self, z: Tensor, *args: Any, **kwargs: Any) -> Any:
            calls.append(set(kwargs))
            return super().decode(z, *args, **kwargs)

    pipeline.vae = Noted(own, strip=2)
    for size, want in zip(((64, 48), (72, 40)), plain, strict=True):
        assert relative_l2(pipeline(**call(*size)).images, want) <= TOLERANCE
    assert calls == [{"return_dict", "generator", "image", "mask"}] * 2
