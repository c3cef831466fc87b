"""VAEs in public shapes: their sizes are those of the published weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tvae.pipeline.bench.shapes import SHAPES, Shape, _class_of, build

PARAMETERS = {
    "sdxl": 83_653_863,
    "wan21": 126_892_531,
    "hunyuan": 246_478_803,
    "cogvideox": 215_583_907,
    "mochi": 459_748_611,
    "ltx": 419_193_649,
    "seedvr2": 250_648_227,
}
"""Of the checkpoints that people download."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_shape_is_the_public_one(name: str) -> None:
    cls = _class_of(SHAPES[name])  # imported outside: tensors that modules keep must not be born on "meta"
    with torch.device("meta"):
        model = cls(**SHAPES[name].config)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


def test_every_shape_is_checked() -> None:
    assert set(PARAMETERS) == set(SHAPES)


def test_weights_depend_on_the_seed_alone_and_norms_matter() -> None:
    small = Shape("AutoencoderKL", {"block_out_channels": (16,), "norm_num_groups": 4}, "small")
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, two, other = build(small), build(small), build(small, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    first = next(iter(one.parameters()))
    assert torch.equal(first, next(iter(two.parameters())))
    assert not torch.equal(first, next(iter(other.parameters())))
    norms = [m for m in one.modules() if isinstance(m, nn.GroupNorm)]
    assert norms
    assert all(norm.weight.std() > 0.1 and norm.bias.std() > 0.1 for norm in norms)
    assert not any(p.requires_grad for p in one.parameters())
