"""The convolutions for Hopper without one: what the kernel is told of maps and work, and what is not given to it."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tvae.kernels import Unsupported
from tvae.kernels.cuda import hopper_conv
from tvae.kernels.cuda.ring import Card
from tvae.kernels.prebuild import rehearsal
from tvae.kernels.registry import Failed

ALL = 1, 1, 1, 1
HOPPER = Card((9, 0), 132, 232448, 233472)


def last(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16().contiguous(memory_format=torch.channels_last)


class Machine:
    """A Hopper card that notes what it is told."""

    def __init__(self) -> None:
        self.built: list[Any] = []
        self.boxes: list[tuple[Any, ...]] = []
        self.work: dict[str, int] = {}
        self.blocks = 0

    def box(self, *of: Any) -> Any:
        self.boxes.append(of)
        return SimpleNamespace(getPtr=lambda: 1)

    def launch(self, kernel: str, blocks: int, threads: int, shared: int, device: Any, arguments: list[int]) -> None:
        assert (kernel, threads, device, len(arguments)) == ("kernel", 384, None, 5)
        assert shared <= HOPPER.shared_block
        work = hopper_conv._Work.from_address(arguments[-1])
        self.work, self.blocks = {name: getattr(work, name) for name, *_ in work._fields_}, blocks


def machine_of(patch: pytest.MonkeyPatch, busy: float = 0.0) -> Machine:
    made = Machine()
    patch.setattr(hopper_conv, "missing", lambda: None)
    patch.setattr(hopper_conv, "card", lambda _: HOPPER)
    patch.setattr(hopper_conv, "load", lambda *key: made.built.append(key) or "kernel")
    patch.setattr(hopper_conv, "boxes", made.box)
    patch.setattr(hopper_conv, "launch", made.launch)
    patch.setattr(hopper_conv, "_BUSY", busy)
    patch.setattr(hopper_conv, "_BUSY_CLIP", busy)
    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One that takes pictures of any size."""
    return machine_of(monkeypatch)


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
        assert machine.built[0][2] == (("ELEMENT", 1), ("RESIDUAL", 0), ("STATS", int(stats)), ("ENLARGE", 1))


ENLARGED = {
    "an odd weight": ({"taps": last(128, 64, 3, 3)}, r"a weight \[128, 64, 1, 3, 3\]"),
    "channels": ({"taps": last(96, 64, 4, 4)}, r"a weight \[96, 64"),
    "nothing left": ({"x": last(1, 64, 1, 8), "pads": (1, 1, 0, 1)}, r"a map \[1, 64, 1, 8\]"),
    "columns apart": ({"out": last(1, 128, 16, 32)[..., ::2]}, "columns lie apart"),
    "a smaller place": ({"out": last(1, 128, 14, 16)}, "a place for it"),
    "a place in planes": ({"out": last(1, 128, 16, 16).contiguous()}, "columns lie apart"),
    "an odd place": ({"out": last(1, 128, 15, 16)}, "columns lie apart"),
}


@pytest.mark.parametrize("case", ENLARGED)
def test_what_is_not_enlarged(case: str, machine: Machine) -> None:
    changed, words = ENLARGED[case]
    call = {"x": last(1, 64, 8, 8), "taps": last(128, 64, 4, 4), "bias": None, "pads": ALL, "out": None, "stats": True}
    with pytest.raises(Unsupported, match=words):
        hopper_conv.enlarge_conv(**{**call, **changed})
    assert not machine.boxes


def test_small_pictures_are_left_to_the_level_below(monkeypatch: pytest.MonkeyPatch) -> None:
    module, below = import_module("tvae.kernels.cuda.enlarge_conv"), []
    machine = machine_of(monkeypatch, busy=2.0)
    monkeypatch.setattr(module, "implementation", lambda *of: lambda y: below.append((of, y)))
    given = last(1, 64, 8, 8), last(128, 64, 4, 4), None, ALL, None, True
    with pytest.raises(Unsupported, match="idle"):
        module.enlarge_conv(*given)
    assert not below
    with rehearsal() as builds:  # the run's picture may be as small, or not
        y, parts = module.enlarge_conv(*given)
        assert len(below) == 1
        module.enlarge_conv(*given[:-1], False)
    assert len(builds) == 2
    ((of, made),) = below
    assert of == ("group_stats", "triton")
    assert made is y
    assert (y.shape, parts.shape) == ((1, 128, 16, 16), (1, 4, 3, 128))
    monkeypatch.setattr(hopper_conv, "missing", lambda: "no Hopper")
    with pytest.raises(Failed, match="no Hopper"):
        module.enlarge_conv(*given)
    assert not machine.boxes


def test_a_run_asks_nothing_of_the_level_below(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("tvae.kernels.cuda.enlarge_conv")
    monkeypatch.setattr(module, "implementation", lambda *_: pytest.fail("asked"))
    module.enlarge_conv(last(1, 64, 8, 8), last(128, 64, 4, 4), None, ALL, None, True)
    assert machine.blocks > 0


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


def test_what_the_kernel_does_not_take_is_left_to_cudnn(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    module, left = import_module("tvae.kernels.cuda.conv3d"), []
    monkeypatch.setattr(module.cudnn_clip, "conv3d", lambda *given: left.append(given) or "cuDNN's")
    x, weight = torch.zeros(1, 64, 5, 8, 8).bfloat16(), torch.zeros(128, 64, 3, 3, 3).bfloat16()
    last_3d = [t.contiguous(memory_format=torch.channels_last_3d) for t in (x, weight)]
    once = [1, 1, 1], [0, 1, 1], [1, 1, 1], 1
    assert module.conv3d(*last_3d, None, *once).shape == (1, 128, 3, 8, 8)
    assert not left
    for call in ((x, weight, None, *once), (*last_3d, None, [2, 1, 1], *once[1:]), (*last_3d, None, *once[:3], 2)):
        assert module.conv3d(*call) == "cuDNN's"
    assert len(left) == 3


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
    macros = (("ELEMENT", 1), ("RESIDUAL", 0), ("STATS", 1), ("ENLARGE", 0))
    assert machine.built == [("conv", "hopper_conv", macros, None)]


def test_a_bias_of_the_maps_type_is_read_as_it_is(machine: Machine) -> None:
    bias = torch.randn(128).bfloat16()
    hopper_conv.conv_add(last(1, 64, 40, 40), last(128, 64, 3, 3), None, bias, ALL, None, False)
    assert (machine.work["bias"], machine.work["float_bias"]) == (bias.data_ptr(), 0)


def test_without_statistics_or_bias_there_is_nothing_to_point_to(machine: Machine) -> None:
    y = last(1, 128, 40, 40)
    assert hopper_conv.conv_add(last(1, 64, 40, 40), last(128, 64, 3, 3), y, None, ALL, y, False)[1] is None
    assert (machine.work["bias"], machine.work["parts"]) == (None, None)
    assert machine.built[0][2] == (("ELEMENT", 1), ("RESIDUAL", 1), ("STATS", 0), ("ENLARGE", 0))


@pytest.mark.parametrize(
    ("shape", "taken"),
    [
        ((1, 512, 64, 64), False),  # half of the multiprocessors
        ((4, 512, 64, 64), True),
        ((1, 512, 96, 96), False),  # a turn of all, and one of a few
        ((1, 128, 208, 208), True),
        ((1, 512, 128, 128), True),
    ],
)
def test_pictures_that_leave_multiprocessors_idle_are_left_to_cudnn(
    shape: tuple[int, ...], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(monkeypatch, hopper_conv._BUSY)
    y, weight = last(*shape), last(shape[1], 64, 3, 3)
    x = last(shape[0], 64, *shape[2:])
    if taken:
        hopper_conv.conv_add(x, weight, None, None, ALL, y, False)
        assert machine.blocks > 0
    else:
        with pytest.raises(Unsupported, match="idle"):
            hopper_conv.conv_add(x, weight, None, None, ALL, y, False)


LAID = "not innermost, or not at multiples of 16"
"""What is said of maps as boxes cannot be copied from."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "float32": ({"x": last(1, 64, 8, 8).float()}, "maps of torch.float32"),
    "another type": ({"weight": last(128, 64, 3, 3).half()}, "of unlike type"),
    "one tap": ({"weight": last(128, 64, 1, 1)}, r"a weight \[128, 64, 1, 1, 1\]$"),
    "five columns": ({"weight": last(128, 64, 3, 5)}, r"a weight \[128, 64, 1, 3, 5\]$"),
    "channels in": ({"x": last(1, 96, 8, 8), "weight": last(128, 96, 3, 3)}, r"a weight \[128, 96"),
    "channels out": ({"weight": last(192, 64, 3, 3)}, r"a weight \[192, 64"),
    "planes": ({"x": last(1, 64, 8, 8).contiguous()}, LAID),
    "every other channel": ({"x": last(1, 128, 8, 8)[:, ::2]}, LAID),
    "from the second channel": ({"x": last(1, 72, 8, 8)[:, 1:65]}, LAID),
    "columns at 136 bytes": ({"x": last(1, 68, 8, 8)[:, :64]}, LAID),
    "no column": ({"x": last(1, 64, 8, 0)}, LAID),
    "one row for all": ({"residual": last(1, 128, 1, 8).expand(1, 128, 8, 8)}, LAID),
    "a weight's planes": ({"weight": last(128, 64, 3, 3).contiguous()}, LAID),
    "half a weight": ({"weight": last(128, 128, 3, 3)[:, :64]}, "a weight whose channels are not innermost"),
    "more channels than the weight's": ({"x": last(1, 128, 8, 8)}, r"a map \[1, 128, 1, 8, 8\]"),
    "a float64 bias": ({"bias": torch.zeros(128).double()}, "a bias in float64"),
    "a bias elsewhere": ({"bias": torch.zeros(128, device="meta")}, "a bias in float64, or elsewhere"),
    "a smaller place": ({"out": last(1, 128, 7, 8)}, "a sum, or a place for it"),
    "a smaller residual": ({"residual": last(1, 128, 7, 8)}, "a sum, or a place for it"),
    "gradients": ({"x": last(1, 64, 8, 8).requires_grad_()}, "no gradients"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, machine: Machine) -> None:
    changed, words = REFUSED[case]
    call = {"x": last(1, 64, 8, 8), "weight": last(128, 64, 3, 3), "residual": None, "bias": None, "out": None}
    with pytest.raises(Unsupported, match=words):
        hopper_conv.conv_add(**{**call, **changed}, pads=ALL, stats=True)
    assert not machine.boxes


def test_a_picture_is_no_clip(machine: Machine) -> None:
    with pytest.raises(Unsupported, match="a clip"):
        hopper_conv.conv3d(last(1, 64, 8, 8), last(128, 64, 3, 3), None, (0, 1, 1))


def test_steps_beyond_what_a_descriptor_holds_are_refused() -> None:
    far = torch.empty(1, dtype=torch.bfloat16, device="meta").as_strided((2, 64, 1, 8, 8), (1 << 40, 1, 4096, 512, 64))
    assert hopper_conv._steps(far) is None
    assert hopper_conv._steps(far[:1]) == (128, 1024, 8192, 8192)


@pytest.mark.parametrize("alone", [True, False])
def test_a_rehearsal_launches_nothing_and_asks_the_others_too(
    alone: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's picture may be too small for the kernel, the rehearsal's always is."""
    module = import_module("tvae.kernels.cuda.conv_add")
    monkeypatch.setattr(hopper_conv, "_BUSY", 2.0)
    others: list[str] = []
    monkeypatch.setattr(module, "_statistics", lambda _: others.append("statistics"))
    monkeypatch.setattr(module.cudnn_sum, "check", lambda *_: others.append("cuDNN"))
    monkeypatch.setattr(module, "implementation", lambda *_: lambda *_: others.append("the level below"))
    x, weight, residual = last(2, 64, 40, 30), last(256, 64, 3, 3), last(2, 256, 40, 30)
    with rehearsal() as builds:
        y, parts = module.conv_add(x, weight, None if alone else residual, None, ALL, None, True)
        assert others == (["the level below"] if alone else ["statistics", "cuDNN"])
        module.conv_add(x[:, :, 1:], weight, residual, None, (1, 1, 1, 2), None, False)
    assert others[-1] == "the level below"  # cuDNN may have no plan for borders on one side
    assert (y.shape, parts.shape) == ((2, 256, 40, 30), (2, 12, 3, 256))
    assert len(builds) == 2
    assert not machine.boxes


def test_without_the_card_nothing_that_adds_nothing_is_asked_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("tvae.kernels.cuda.conv_add")
    monkeypatch.setattr(hopper_conv, "missing", lambda: "no Hopper")
    x, weight = last(1, 64, 8, 8), last(128, 64, 3, 3)
    with pytest.raises(Unsupported, match="no Hopper; nothing to add"):
        module.conv_add(x, weight, None, None, ALL, None, True)
    monkeypatch.setattr("tvae.kernels.cudnn_sum.missing", lambda: "no cuDNN")
    with pytest.raises(Failed, match="no Hopper; no cuDNN"):
        module.conv_add(x, weight, last(1, 128, 8, 8), None, ALL, None, True)
    machine_of(monkeypatch, busy=2.0)  # without cuDNN's frontend larger pictures still have the kernel
    with pytest.raises(Unsupported, match="idle; no cuDNN") as refused:
        module.conv_add(x, weight, last(1, 128, 8, 8), None, ALL, None, True)
    assert not isinstance(refused.value, Failed)
