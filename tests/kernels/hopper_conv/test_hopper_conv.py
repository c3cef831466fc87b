"""The convolutions for Hopper without one: what the kernel is told of maps and work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hopper_machine import ALL, Machine, last, machine_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tvae.kernels.cuda import hopper_conv


def behind(of: tuple[Any, ...], t: Tensor) -> Tensor:
    """The elements that a descriptor leads to, outermost dimension first, in the memory of this tensor."""
    address, dtype, sizes, steps, _ = of
    assert dtype == t.dtype
    offset, rest = divmod(address - t.untyped_storage().data_ptr(), t.element_size())
    strides = [1, *(step // t.element_size() for step in steps)]
    assert rest == 0
    assert all(step % 16 == 0 for step in steps)
    return torch.as_strided(t, sizes[::-1], strides[::-1], offset)


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 40), st.integers(1, 40), st.data())
def test_descriptors_lead_to_the_maps(n: int, deep: int, wide: int, h: int, w: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = machine_of(patch)
        top, left = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        x = last(n, 64 * deep, h + top, w + left)[:, :, top:, left:]
        residual = last(n, 128 * wide, 2 * h, w)[:, :, ::2] if data.draw(st.booleans()) else None
        weight, y = last(128 * wide, 64 * deep, 3, 3), last(n, 128 * wide, h, w + 5)[..., :w]
        hopper_conv.conv_add(x, weight, residual, None, ALL, y, False)
        of_x, of_weight, of_residual, of_y = machine.boxes
        other = y if residual is None else residual
        for of, t in ((of_x, x), (of_residual, other), (of_y, y)):
            assert torch.equal(behind(of, t).squeeze(1), t.permute(0, 2, 3, 1))
        assert torch.equal(behind(of_weight, weight), weight.permute(0, 2, 3, 1).flatten(1, 2))
        sizes = [(64, 18, 18, 1, 1), (64, 1, 128), *[(64, 16, 2, 1, 1)] * 2]
        assert [of[4] for of in machine.boxes] == sizes


def by_place(y: Tensor) -> Tensor:
    """[N, row of the square, H, W, column of the square and C]."""
    places = [torch.stack([y[:, :, p::2, q::2] for q in range(2)], -1) for p in range(2)]
    return torch.stack(places, 1).permute(0, 1, 3, 4, 5, 2).flatten(4)


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(2, 40), st.integers(2, 40), st.data())
def test_an_enlarged_picture(n: int, deep: int, wide: int, h: int, w: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = machine_of(patch)
        pads = 1, 1, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
        stats, rows = data.draw(st.booleans()), h + pads[2] + pads[3] - 2
        assume(rows > 0)
        x, taps, c = last(n, 64 * deep, h, w), last(128 * wide, 64 * deep, 4, 4), 128 * wide
        out = last(n, c, 2 * rows + 7, 2 * w)[:, :, 3:-4] if data.draw(st.booleans()) else None
        y, parts = hopper_conv.enlarge_conv(x, taps, None, pads, out, stats)
        assert y.shape == (n, c, 2 * rows, 2 * w)
        assert y.stride(1) == 1
        assert out is None or y is out
        of_x, of_taps, _, of_y = machine.boxes
        assert torch.equal(behind(of_x, x).squeeze(1), x.permute(0, 2, 3, 1))
        assert torch.equal(behind(of_taps, taps), taps.permute(0, 2, 3, 1).flatten(1, 2))
        assert torch.equal(behind(of_y, y.normal_()), by_place(y))
        assert [of[4] for of in machine.boxes] == [(64, 18, 18, 1, 1), (64, 1, 128), *[(64, 16, 2, 1, 1)] * 2]
        told = {"samples": n, "frames": 2, "height": rows, "width": w, "channels": c, "wide": 2 * wide, "deep": deep}
        told |= {"times": 1, "left": 1, "top": pads[2], "front": 0}
        assert {name: machine.work[name] for name in told} == told
        slots = machine.blocks // (2 * wide)
        assert slots == min(132 // (2 * wide), 2 * n * -(-rows // 16) * -(-w // 16))
        assert (parts is not None) == stats
        assert parts is None or parts.shape == (n, 2 * slots, 3, c)
        macros = {"ELEMENT": 1, "RESIDUAL": 0, "STATS": int(stats), "ENLARGE": 1, "DOWN": 0}
        assert dict(machine.built[0][2]) == macros


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(2, 40), st.integers(2, 40), st.data())
def test_a_picture_of_half_the_size(n: int, deep: int, wide: int, h: int, w: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = machine_of(patch)
        pads, stats = (1, data.draw(st.integers(0, 1))), data.draw(st.booleans())
        above, rows, c = data.draw(st.integers(0, 3)), h - 1 + pads[1], 128 * wide
        x, weight = last(n, 64 * deep, 2 * h + above, 2 * w)[:, :, above:], last(c, 64 * deep, 3, 3)
        out = last(n, c, rows + 7, w)[:, :, 3:-4] if data.draw(st.booleans()) else None
        y, parts = hopper_conv.down_conv(x, weight, None, pads, out, stats)
        assert y.shape == (n, c, rows, w)
        assert y.shape == F.conv2d(F.pad(x.to("meta"), (0, 1, 0, pads[1])), weight.to("meta"), stride=2).shape
        assert y.stride(1) == 1
        assert out is None or y is out
        of_x, of_weight, _, of_y = machine.boxes
        assert torch.equal(behind(of_x, x), by_place(x))
        assert torch.equal(behind(of_weight, weight), weight.permute(0, 2, 3, 1).flatten(1, 2))
        assert torch.equal(behind(of_y, y.normal_()).squeeze(1), y.permute(0, 2, 3, 1))
        assert [of[4] for of in machine.boxes] == [(64, 18, 18, 1, 1), (64, 1, 128), *[(64, 16, 2, 1, 1)] * 2]
        told = {"samples": n, "frames": 1, "height": rows, "width": w, "channels": c, "wide": wide, "deep": deep}
        told |= {"times": 1, "left": 0, "top": 0, "front": 0}
        assert {name: machine.work[name] for name in told} == told
        slots = machine.blocks // wide
        assert parts is None or parts.shape == (n, slots, 3, c)
        macros = {"ELEMENT": 1, "RESIDUAL": 0, "STATS": int(stats), "ENLARGE": 0, "DOWN": 1}
        assert dict(machine.built[0][2]) == macros


@pytest.mark.parametrize("padding", [(0, 1, 1), (1, 0, 2), (2, 1, 0)])
def test_clips(padding: tuple[int, int, int], machine: Machine) -> None:
    x = torch.randn(2, 64, 9, 20, 14).bfloat16().contiguous(memory_format=torch.channels_last_3d)[:, :, 2:7, 1:, :-1]
    weight = torch.randn(256, 64, 3, 3, 3).bfloat16().contiguous(memory_format=torch.channels_last_3d)
    y = hopper_conv.conv3d(x, weight, None, padding)
    assert y.shape == F.conv3d(x.float(), weight.float(), padding=padding).shape
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    of_x, of_weight, _, of_y = machine.boxes
    for of, t in ((of_x, x), (of_y, y.normal_())):
        assert torch.equal(behind(of, t), t.permute(0, 2, 3, 4, 1))
    assert torch.equal(behind(of_weight, weight), weight.permute(0, 2, 3, 4, 1).flatten(1, 3))
    told = {"samples": 2, "frames": y.shape[2], "height": y.shape[3], "width": y.shape[4], "times": 3}
    told |= dict(zip(("front", "top", "left"), padding, strict=True))
    assert {name: machine.work[name] for name in told} == told


@pytest.mark.parametrize(
    ("shape", "blocks", "slots"),
    [
        ((1, 128, 64, 64), 16, 16),
        ((1, 128, 256, 256), 132, 132),
        ((2, 512, 100, 90), 132, 33),
        ((1, 384, 16, 16), 3, 1),
    ],
)
def test_blocks_and_statistics(shape: tuple[int, ...], blocks: int, slots: int, machine: Machine) -> None:
    y = last(*shape)
    n, c, h, w = shape
    bias = torch.randn(c).half()
    x, weight = last(n, 64, h - 1, w), last(c, 64, 3, 3)
    made, parts = hopper_conv.conv_add(x, weight, None, bias, (1, 1, 1, 2), y, True)
    assert made is y
    assert parts is not None
    assert (parts.shape, parts.dtype) == ((n, slots, 3, c), torch.float64)
    assert machine.blocks == blocks
    told = {"samples": n, "height": h, "width": w, "channels": c, "wide": c // 128, "deep": 1, "left": 1, "top": 1}
    assert {name: machine.work[name] for name in told} == told
    assert machine.work["parts"] == parts.data_ptr()
    assert machine.work["bias"] not in (None, bias.data_ptr())  # it is read in float32, where it is not of x's type
    assert machine.work["float_bias"] == 1
    macros = (("ELEMENT", 1), ("RESIDUAL", 0), ("STATS", 1), ("ENLARGE", 0), ("DOWN", 0))
    assert machine.built == [("conv", "hopper_conv", macros, None)]


def test_a_bias_of_the_maps_type_is_read_as_it_is(machine: Machine) -> None:
    bias = torch.randn(128).bfloat16()
    hopper_conv.conv_add(last(1, 64, 40, 40), last(128, 64, 3, 3), None, bias, ALL, None, False)
    assert (machine.work["bias"], machine.work["float_bias"]) == (bias.data_ptr(), 0)


def test_without_statistics_or_bias_there_is_nothing_to_point_to(machine: Machine) -> None:
    y = last(1, 128, 40, 40)
    assert hopper_conv.conv_add(last(1, 64, 40, 40), last(128, 64, 3, 3), y, None, ALL, y, False)[1] is None
    assert (machine.work["bias"], machine.work["parts"]) == (None, None)
    assert machine.built[0][2] == (("ELEMENT", 1), ("RESIDUAL", 1), ("STATS", 0), ("ENLARGE", 0), ("DOWN", 0))
