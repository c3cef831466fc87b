"""Wide or frame-causal attention, and the nearest code of a table, are found."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, name, only, picture, rewritten
from tiny_vaes import relative_l2, result
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.fused_ops import nearest_code
from tvae.pipeline.engine.passes.attention import fuse_nearest_code, use_wide_attention

FRAMES = 3


def tokens(m: Layers, x: Tensor) -> Tensor:
    """[N, 1, L, 264] of a picture's or a clip's pixels."""
    return m.wide(x.flatten(2).transpose(1, 2)).unsqueeze(1)


def operands(m: Layers, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    t = tokens(m, x)
    return t, t.sin(), t.tanh()


def plain(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x))


def with_a_scale(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x), scale=0.3)


def with_every_default(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x), None, 0.0, False)


def every_row_for_itself(m: Layers, x: Tensor) -> Outputs:
    rows = m.wide(x.permute(0, 2, 3, 1).flatten(0, 1)).unsqueeze(1)
    return F.scaled_dot_product_attention(rows, rows.sin(), rows.tanh())


FOUND = (plain, with_a_scale, with_every_default, every_row_for_itself)


@pytest.mark.parametrize("fn", FOUND, ids=name)
def test_a_wide_head_is_found(fn: Fn) -> None:
    done = all_rewritten(use_wide_attention, *FOUND)[fn]
    node = only(done, "wide_attention")
    assert node.args[3:] == (pytest.approx(0.3 if fn is with_a_scale else 264**-0.5), 1)
    assert count(done)["scaled_dot_product_attention"] == 0


def narrow(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*(t[..., :256] for t in operands(m, x)))


def of_two_heads(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*(torch.cat([t, -t], 1) for t in operands(m, x)))


def without_a_dimension_of_heads(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*(t.squeeze(1) for t in operands(m, x)))


def narrower_values(m: Layers, x: Tensor) -> Outputs:
    q, k, v = operands(m, x)
    return F.scaled_dot_product_attention(q, k, v[..., :260])


def keys_of_one_picture(m: Layers, x: Tensor) -> Outputs:
    """Broadcast over the pictures of the batch."""
    q, k, v = operands(m, x)
    return F.scaled_dot_product_attention(q, k[:1], v[:1])


def with_a_bias(m: Layers, x: Tensor) -> Outputs:
    q, k, v = operands(m, x)
    return F.scaled_dot_product_attention(q, k, v, q.mean((2, 3), keepdim=True))


OTHERS = (narrow, of_two_heads, without_a_dimension_of_heads, narrower_values, keys_of_one_picture, with_a_bias)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_any_other_attention_stays(fn: Fn) -> None:
    assert "wide_attention" not in count(all_rewritten(use_wide_attention, *OTHERS)[fn])


def frames_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The frame of every token, down and across."""
    index = torch.arange(FRAMES).repeat_interleave(x.shape[3] * x.shape[4])
    down, across = torch.meshgrid(index, index, indexing="ij")
    return down, across


def masked(m: Layers, x: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*operands(m, x), attn_mask=mask[None, None])


def by_minus_infinity(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, torch.where(across <= down, 0.0, -torch.inf).to(x.dtype))


def by_truth(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, across <= down)


def nothing_hidden(m: Layers, x: Tensor) -> Outputs:
    return F.scaled_dot_product_attention(*operands(m, x))


CLIPS: dict[Fn, int] = {by_minus_infinity: FRAMES, by_truth: FRAMES, nothing_hidden: 1}


@pytest.mark.parametrize("fn", CLIPS, ids=name)
def test_frames_of_a_clip(fn: Fn) -> None:
    done = rewritten(fn, use_wide_attention, picture(2, 4, FRAMES, 6, 2))
    assert only(done, "wide_attention").args[4] == CLIPS[fn]


def later_frames_too(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, across >= down)


def its_own_frame(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, across == down)


def earlier_by_one_at_most(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, torch.logical_and(across <= down, across >= down - 1))


def by_a_large_number(m: Layers, x: Tensor) -> Outputs:
    down, across = frames_of(x)
    return masked(m, x, torch.where(across <= down, 0.0, -3.0).to(x.dtype))


@pytest.mark.parametrize("fn", [later_frames_too, its_own_frame, earlier_by_one_at_most, by_a_large_number], ids=name)
def test_any_other_mask_stays(fn: Fn) -> None:
    done = rewritten(fn, use_wide_attention, picture(1, 4, FRAMES, 5, 2))
    expected = {"wide_attention": 0, "scaled_dot_product_attention": 1}
    assert {op: count(done)[op] for op in expected} == expected


def vectors(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(-1, 4)


def plain_codes(m: Layers, x: Tensor) -> Outputs:
    return torch.argmin(torch.cdist(vectors(x), m.wide.weight), dim=1)


def from_behind(m: Layers, x: Tensor) -> Outputs:
    return torch.cdist(vectors(x), m.wide.weight, 2.0).argmin(-1, False)


def the_code_itself(m: Layers, x: Tensor) -> Outputs:
    return m.wide.weight[torch.cdist(vectors(x), m.wide.weight).argmin(1)].sin()


FOUND_codes = (plain_codes, from_behind, the_code_itself)


@pytest.mark.parametrize("fn", FOUND_codes, ids=name)
def test_it_is_found(fn: Fn) -> None:
    done = count(all_rewritten(fuse_nearest_code, *FOUND_codes)[fn])
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


OTHERS_codes = (manhattan, kept, of_all, furthest, of_pictures)


@pytest.mark.parametrize("fn", OTHERS_codes, ids=name)
def test_others_stay(fn: Fn) -> None:
    assert count(all_rewritten(fuse_nearest_code, *OTHERS_codes)[fn])["nearest_code"] == 0


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
