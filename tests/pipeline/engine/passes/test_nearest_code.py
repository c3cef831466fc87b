"""The smallest of the distances to all codes of a table: found, and decided in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from rewrites import Fn, Layers, Outputs, all_rewritten, count, name
from tiny_vaes import relative_l2, result
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.fused_ops import nearest_code
from tvae.pipeline.engine.passes.attention import fuse_nearest_code


def vectors(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(-1, 4)


def plain(m: Layers, x: Tensor) -> Outputs:
    return torch.argmin(torch.cdist(vectors(x), m.wide.weight), dim=1)


def from_behind(m: Layers, x: Tensor) -> Outputs:
    return torch.cdist(vectors(x), m.wide.weight, 2.0).argmin(-1, False)


def the_code_itself(m: Layers, x: Tensor) -> Outputs:
    return m.wide.weight[torch.cdist(vectors(x), m.wide.weight).argmin(1)].sin()


FOUND = (plain, from_behind, the_code_itself)


@pytest.mark.parametrize("fn", FOUND, ids=name)
def test_it_is_found(fn: Fn) -> None:
    done = count(all_rewritten(fuse_nearest_code, *FOUND)[fn])
    assert (done["nearest_code"], done["cdist"], done["argmin"]) == (1, 0, 0)


def manhattan(m: Layers, x: Tensor) -> Outputs:
    return torch.cdist(vectors(x), m.wide.weight, 1.0).argmin(1)


def kept(m: Layers, x: Tensor) -> Outputs:
    return torch.cdist(vectors(x), m.wide.weight).argmin(1, True)


def of_all(m: Layers, x: Tensor) -> Outputs:
    distances = torch.cdist(vectors(x), m.wide.weight)
    return distances.argmin(1), distances.amin(1)


def furthest(m: Layers, x: Tensor) -> Outputs:
    return torch.cdist(vectors(x), m.wide.weight).argmax(1)


def of_pictures(m: Layers, x: Tensor) -> Outputs:
    codes = m.wide.weight.unsqueeze(0).expand(2, -1, -1)
    return torch.cdist(x.flatten(2).transpose(1, 2), codes).argmin(2)


OTHERS = (manhattan, kept, of_all, furthest, of_pictures)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_others_stay(fn: Fn) -> None:
    assert count(all_rewritten(fuse_nearest_code, *OTHERS)[fn])["nearest_code"] == 0


def test_many_vectors_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, codes = torch.randn(100, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    want = (x[:, None] - codes).square().sum(-1).argmin(1)
    for distances in (1, 7 * 9, 1 << 20):
        monkeypatch.setattr("tvae.pipeline.engine.ir.fused_ops._PIECE", distances)
        assert torch.equal(nearest_code(None, x, codes), want)


@pytest.mark.long
@pytest.mark.parametrize("strip", [None, 16])
def test_codes_that_are_close_together(strip: int | None) -> None:
    """As diffusers makes them: within 1/16384 of zero. In float32 the model itself takes others than in float64."""
    from diffusers.models.autoencoders.vq_model import VQModel

    torch.manual_seed(0)
    shape = {"block_out_channels": (32,), "layers_per_block": 1, "norm_num_groups": 8}
    model = VQModel(**shape, num_vq_embeddings=16384, vq_embed_dim=4, latent_channels=4).eval()
    z = torch.randn(1, 4, 64, 64)
    with torch.no_grad():
        exact = result(copy.deepcopy(model).double().decode(z.double()))
        assert relative_l2(result(model.decode(z)), exact) > 1e-5
        assert relative_l2(result(TiledVAE(model, strip=strip).decode(z)), exact) <= 1e-5
