"""Copies that keep channels innermost: the values of PyTorch's own, in the layout that fused operations take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.ir.layout import dense, joined, reshaped, settle_strides

LAST = torch.channels_last_3d


def clip(*shape: int) -> Tensor:
    """Channels innermost."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(4)).contiguous(memory_format=LAST)


def shuffled(x: Tensor, reshape: object) -> Tensor:
    """Pixels and frames out of channels, spelled as views, as LTX does; ``reshape`` makes each."""
    n, c, t, h, w = x.shape
    y = x.reshape(n, c // 8, 2, 2, 2, t, h, w).permute(0, 1, 5, 2, 6, 3, 7, 4)
    for shape in ((n, c // 8, t, 2, h, 2, 2 * w), (n, c // 8, t, 2, 2 * h, 2 * w), (n, c // 8, 2 * t, 2 * h, 2 * w)):
        y = reshape(y, shape)  # type: ignore[operator]
    return y


def test_a_pixel_shuffle_of_views_keeps_its_layout() -> None:
    x = clip(1, 24, 3, 4, 5)
    found, want = shuffled(x, reshaped), shuffled(x, Tensor.reshape)
    assert torch.equal(found, want)
    assert found.is_contiguous(memory_format=LAST)
    assert not want.is_contiguous(memory_format=LAST)
    plain = x.contiguous()
    assert torch.equal(shuffled(plain, reshaped), want)
    assert shuffled(plain, reshaped).is_contiguous()


def test_one_whose_channels_come_last_does_so_too() -> None:
    """As HunyuanVideo 1.5 has it. Of a clip with channels outside a copy had them inside, and so had all after it."""

    def spread(x: Tensor, reshape: object) -> Tensor:
        n, c, t, h, w = x.shape
        y = x.reshape(n, 2, 2, 2, c // 8, t, h, w).permute(0, 4, 5, 1, 6, 2, 7, 3)
        return reshape(y, (n, c // 8, 2 * t, 2 * h, 2 * w))  # type: ignore[operator, no-any-return]

    x = clip(1, 24, 3, 4, 5)
    want = spread(x, Tensor.reshape)
    assert torch.equal(spread(x, reshaped), want)
    assert spread(x, reshaped).is_contiguous(memory_format=LAST)
    assert torch.equal(spread(x.contiguous(), reshaped), want)
    assert spread(x.contiguous(), reshaped).is_contiguous()


@pytest.mark.parametrize("dim", [0, 2, 3, 4])
@pytest.mark.parametrize("given", [False, True])
def test_pieces_in_several_layouts_take_that_of_the_largest(dim: int, given: bool) -> None:
    shapes = [[2, 4, 3, 5, 6] for _ in range(3)]
    shapes[0][dim] = shapes[2][dim] = 1
    pieces = [clip(*shape) for shape in shapes]
    pieces[0] = pieces[0].contiguous()
    want = torch.cat(pieces, dim)
    out = torch.empty(want.shape).contiguous(memory_format=LAST) if given else None
    found = joined(pieces, dim, out)
    assert torch.equal(found, want)
    assert found.is_contiguous(memory_format=LAST)
    if out is not None:
        assert found.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (1, 1, 2, 3), (2, 5, 1, 1), (1, 4, 2, 3, 5)])
def test_what_has_no_channels_inside_is_as_ever(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert torch.equal(joined([x, x], 1), torch.cat([x, x], 1))
    assert torch.equal(joined([x, x], 0), torch.cat([x, x], 0))
    assert dense(x).is_contiguous()
    assert torch.equal(reshaped(x, (x.numel(),)), x.reshape(-1))


def test_dense_leaves_dense_channels_where_they_are() -> None:
    x = clip(1, 4, 3, 5, 6)
    assert dense(x).data_ptr() == x.data_ptr()
    part = x[:, :, :, 1:4]
    found = dense(part)
    assert torch.equal(found, part)
    assert found.is_contiguous(memory_format=LAST)
    assert dense(x.contiguous()[..., 1:4]).is_contiguous()


@pytest.mark.parametrize("step", [1, 5, 12])
def test_frames_that_are_joined_lie_one_after_the_other(step: int) -> None:
    """Whatever step a single frame's strides tell of: PyTorch took a step of one for frames that lie inside."""
    frame = clip(1, 4, 1, 2, 3)
    frame = frame.as_strided(frame.shape, (24, 1, step, 12, 4))
    found = joined([frame, frame.half(), frame], 2)
    assert torch.equal(found, torch.cat([frame, frame.half().float(), frame], 2))
    assert found.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("shape", [(1, 4, 2, 3), (1, 4, 1, 2, 3), (2, 4, 1, 2, 3), (1, 4, 2, 1, 3), (1, 4, 1, 1, 3)])
@pytest.mark.parametrize("step", [1, 4, 100])
def test_strides_of_single_elements_tell_of_the_layout(shape: tuple[int, ...], step: int) -> None:
    """PyTorch took maps for such as have their channels outside, and made such of them."""
    inner = torch.randn(shape[0], *shape[2:], shape[1])
    x = inner.movedim(-1, 1)
    odd = x.as_strided(shape, [step if n == 1 else s for n, s in zip(shape, x.stride(), strict=True)])
    found = settle_strides(odd)
    assert torch.equal(found, x)
    assert found.stride() == x.stride()
    assert found.data_ptr() == odd.data_ptr()
    plain = x.contiguous()
    assert settle_strides(plain) is plain
    assert settle_strides(x[..., ::2]).stride() == x[..., ::2].stride()


@pytest.mark.parametrize("by_frame", [False, True])
def test_pixels_of_a_clip_stay_frame_by_frame(by_frame: bool) -> None:
    x = torch.randn(6, 4, 3).contiguous()
    x = x.permute(2, 0, 1).contiguous().permute(1, 2, 0) if by_frame else x.movedim(1, -1).contiguous().movedim(-1, 1)
    found = joined([x[..., :1], x[..., 1:]], -1)
    assert torch.equal(found, x)
    assert found.stride() == x.stride()
