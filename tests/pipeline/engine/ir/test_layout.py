"""Memory layouts, and copies between them."""

from __future__ import annotations

import random
from unittest import mock

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.ir import layout
from tvae.pipeline.engine.ir.layout import _pieces, copy_all_into, copy_into, dense, joined, reshaped, settle_strides

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


TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8)


class Card(Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def drawn(draw: random.Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Any bits, in one of the layouts that buffers have: a part of something larger."""
    more = [n + draw.choice((0, 0, 1, 2)) if d != 1 else n + draw.choice((0, 0, 8)) for d, n in enumerate(shape)]
    order = [0, *range(2, len(shape)), 1] if draw.random() < 0.8 else [*range(len(shape))]
    whole = torch.empty_permuted(more, order, dtype=dtype)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    values = torch.randint(256, (whole.nbytes,), generator=generator, dtype=torch.uint8)
    whole.copy_(values.view(dtype).view(more))
    for dim, n in enumerate(shape):
        whole = whole.narrow(dim, draw.randint(0, more[dim] - n), n)
    return whole.as_subclass(Card)


@pytest.mark.parametrize("seed", range(60))
def test_the_same_bits(seed: int) -> None:
    draw = random.Random(seed)
    channels = draw.choice((1, 3, 4, 8, 12, 16, 96))
    shape = [draw.choice((1, 2)), channels, *(draw.randint(1, 4) for _ in range(draw.choice((1, 2, 3))))]
    dtype = draw.choice(TYPES)
    x, into = drawn(draw, shape, dtype), drawn(draw, shape, dtype)
    want, wide = bits(x.as_subclass(Tensor).clone()), layout._wide(x)
    assert copy_into(into, x) is into
    assert torch.equal(bits(into.as_subclass(Tensor)), want)
    if wide is not None:
        assert wide.numel() * 16 == x.numel() * x.element_size()


def test_rows_of_clips_are_wide() -> None:
    """Those of a buffer with room for the rows of others."""
    room = torch.empty_permuted((1, 96, 6, 12, 7), [0, 2, 3, 4, 1], dtype=torch.bfloat16)
    wide = layout._wide(room.narrow(3, 1, 10))
    assert wide is not None
    assert wide.shape == (1, 6, 10, 7, 12)


def test_wide_ones_are_what_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x, into = (torch.zeros(1, 8, 2, 3, 4).as_subclass(Card) for _ in range(2))
    ours = torch.tensor([1.0]), torch.tensor([2.0])
    found = iter(ours)
    monkeypatch.setattr(layout, "_wide", lambda _: next(found))
    copy_into(into, x)
    assert float(ours[0]) == 2.0


def test_another_type_is_cast() -> None:
    x = torch.randn(1, 8, 2, 3, 4).contiguous(memory_format=torch.channels_last_3d).as_subclass(Card)
    into = torch.empty_like(x, dtype=torch.bfloat16)
    assert torch.equal(copy_into(into, x), x.bfloat16())


def drawn_all(draw: random.Random) -> tuple[Tensor, Tensor]:
    """Parts of two buffers in layouts of their own."""
    shape = [draw.randint(1, 4) for _ in range(draw.randint(1, 5))]
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.uint8])
    found = []
    for _ in range(2):
        order = draw.choice([[*range(len(shape))], draw.sample(range(len(shape)), len(shape))])
        whole = [size + draw.choice([0, 0, 2]) for size in shape]
        buffer = torch.randint(0, 99, [whole[d] for d in order]).to(dtype)
        value = buffer.permute([order.index(d) for d in range(len(shape))])
        for dim, size in enumerate(shape):
            value = value.narrow(dim, draw.randint(0, whole[dim] - size), size)
        found.append(value)
    return found[0], found[1]


def test_drawn_parts() -> None:
    draw = random.Random(0)
    for _ in range(150):
        pairs = [drawn_all(draw) for _ in range(draw.randint(0, 9))]
        wanted = [x.clone() for _, x in pairs]
        around = [
            (into._base, None if into._base is None else into._base.sum(dtype=torch.float64)) for into, _ in pairs
        ]
        before = [into.sum(dtype=torch.float64) for into, _ in pairs]
        copy_all_into(pairs)
        for (into, x), want, (base, total), gone in zip(pairs, wanted, around, before, strict=True):
            assert torch.equal(into, want)
            assert torch.equal(x, want)
            if base is not None and total is not None:  # nothing beside it is written to
                assert base.sum(dtype=torch.float64) == total - gone + into.sum(dtype=torch.float64)


@pytest.mark.parametrize("layout", [torch.channels_last_3d, torch.contiguous_format])
def test_rows_of_frames_are_one_kernels(layout: torch.memory_format) -> None:
    caches = [torch.randn(1, 8, 2, 10, 6).contiguous(memory_format=layout) for _ in range(7)]
    message = torch.zeros(7, 2, 2, 6, 8) if layout == torch.channels_last_3d else torch.zeros(7, 8, 2, 2, 6)
    parts = [part[None].movedim(-1, 1) if layout == torch.channels_last_3d else part[None] for part in message]
    lists = []
    copy = torch._foreach_copy_
    with mock.patch.object(torch, "_foreach_copy_", lambda *both: (lists.append(both), copy(*both))):
        copy_all_into([(part, cache[:, :, :, 3:5]) for part, cache in zip(parts, caches, strict=True)])
    (both,) = lists
    frames = 2 if layout == torch.channels_last_3d else 16
    assert [len(pieces) for pieces in both] == [7 * frames] * 2
    assert all(torch.equal(part, cache[:, :, :, 3:5]) for part, cache in zip(parts, caches, strict=True))


def test_what_lies_in_many_pieces_is_copied_alone() -> None:
    x = torch.randn(1, 32, 2, 10, 6)
    assert _pieces(torch.empty(1, 32, 2, 2, 6), x[:, :, :, 3:5]) is None
    assert _pieces(torch.empty(3, 0), torch.empty(3, 0)) is None
    assert _pieces(torch.empty(3), torch.empty(3).double()) is None


def test_few_are_copied_one_by_one() -> None:
    """Which takes two microseconds each on a GPU, where the kernel for many takes eight."""
    pairs = [(torch.zeros(3, 4), torch.randn(3, 4)) for _ in range(5)]
    with mock.patch.object(torch, "_foreach_copy_") as many:
        copy_all_into(pairs)
    many.assert_not_called()
    assert all(torch.equal(into, x) for into, x in pairs)
