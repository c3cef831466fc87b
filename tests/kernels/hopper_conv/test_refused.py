"""The convolutions for Hopper without one: what is not given to the kernel, and goes to another level."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from hopper_machine import ALL, Machine, last, machine_of

from tvae.kernels import Unsupported
from tvae.kernels.cuda import hopper_conv, hopper_cut
from tvae.kernels.prebuild import Builds, rehearsal
from tvae.kernels.registry import Failed

ENLARGED = {
    "an odd weight": ({"taps": last(128, 64, 3, 3)}, r"a weight \[128, 64, 3, 3\]"),
    "channels": ({"taps": last(96, 64, 4, 4)}, r"a weight \[96, 64"),
    "nothing left": ({"x": last(1, 64, 1, 8), "pads": (1, 1, 0, 1)}, r"a map \[1, 64, 1, 8\]"),
    "columns apart": ({"out": last(1, 128, 16, 32)[..., ::2]}, "columns lie apart"),
    "a smaller place": ({"out": last(1, 128, 14, 16)}, "a place for it"),
    "a place in planes": ({"out": last(1, 128, 16, 16).contiguous()}, "columns lie apart"),
    "an odd place": ({"out": last(1, 128, 15, 16)}, "sides are odd"),
}


@pytest.mark.parametrize("case", ENLARGED)
def test_what_is_not_enlarged(case: str, machine: Machine) -> None:
    changed, words = ENLARGED[case]
    call = {"x": last(1, 64, 8, 8), "taps": last(128, 64, 4, 4), "bias": None, "pads": ALL, "out": None, "stats": True}
    with pytest.raises(Unsupported, match=words):
        hopper_conv.enlarge_conv(**{**call, **changed})
    assert not machine.boxes


HALVED = {
    "odd rows": ({"x": last(1, 64, 9, 8)}, "sides are odd"),
    "odd columns": ({"x": last(1, 64, 8, 9)}, "sides are odd"),
    "planes": ({"x": last(1, 64, 8, 8).contiguous()}, "columns lie apart"),
    "single taps": ({"weight": last(128, 64, 1, 1)}, r"a weight \[128, 64, 1, 1\]"),
    "channels": ({"weight": last(128, 128, 3, 3)}, r"a map \[1, 64, 1, 8, 8\]"),
    "a larger place": ({"out": last(1, 128, 8, 8)}, "a place for it"),
}


@pytest.mark.parametrize("case", HALVED)
def test_what_is_not_halved(case: str, machine: Machine) -> None:
    changed, words = HALVED[case]
    call = {"x": last(1, 64, 8, 8), "weight": last(128, 64, 3, 3), "bias": None, "pads": (1, 1)}
    with pytest.raises(Unsupported, match=words):
        hopper_conv.down_conv(**{**call, "out": None, "stats": True, **changed})
    assert not machine.boxes


def test_small_pictures_are_left_to_the_level_below(monkeypatch: pytest.MonkeyPatch) -> None:
    module, below = import_module("tvae.kernels.cuda.enlarge_conv"), []
    statistics = import_module("tvae.kernels.cuda.statistics_below")
    machine = machine_of(monkeypatch, busy=2.0)
    monkeypatch.setattr(statistics, "implementation", lambda *of: lambda y: below.append((of, y)))
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
    below = import_module("tvae.kernels.cuda.statistics_below")
    monkeypatch.setattr(below, "implementation", lambda *_: pytest.fail("asked"))
    module.enlarge_conv(last(1, 64, 8, 8), last(128, 64, 4, 4), None, ALL, None, True)
    assert machine.blocks > 0


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
    ("shape", "taken"),
    [
        ((1, 512, 48, 48), False),  # a quarter of the multiprocessors
        ((1, 512, 64, 64), True),
        ((4, 512, 48, 48), True),
        ((1, 512, 68, 100), False),  # a turn of all, and one of a few
        ((1, 512, 96, 96), True),
        ((1, 128, 208, 208), True),
        ((1, 512, 128, 128), True),
    ],
)
def test_pictures_that_leave_multiprocessors_idle_are_left_to_others(
    shape: tuple[int, ...], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = machine_of(monkeypatch, hopper_conv._BUSY)
    y, weight = last(*shape), last(shape[1], 64, 3, 3)
    x = last(shape[0], 64, *shape[2:])
    if taken:
        hopper_conv.conv_add(x, weight, None, None, ALL, y, False)
        assert machine.blocks > 0
    else:
        with pytest.raises(hopper_conv.Idle, match="idle"):
            hopper_conv.conv_add(x, weight, None, None, ALL, y, False)


def test_cudnn_is_asked_for_no_plan_of_small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """That took 4 to 7 ms for each convolution of a new size, and saves next to nothing."""
    module = import_module("tvae.kernels.cuda.conv_add")
    machine_of(monkeypatch, hopper_conv._BUSY)
    monkeypatch.setattr(module.cudnn_sum, "conv_add", lambda *_: pytest.fail("asked"))
    x, weight, residual = last(1, 64, 8, 8), last(128, 64, 3, 3), last(1, 128, 8, 8)
    with pytest.raises(hopper_conv.Idle):
        module.conv_add(x, weight, residual, torch.zeros(128).bfloat16(), ALL, None, True)


LAID = "not innermost, or not at multiples of 16"
"""What is said of maps as boxes cannot be copied from."""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "float32": ({"x": last(1, 64, 8, 8).float()}, "maps of torch.float32"),
    "another type": ({"weight": last(128, 64, 3, 3).half()}, "of unlike type"),
    "one tap": ({"weight": last(128, 64, 1, 1)}, r"a weight \[128, 64, 1, 1\]$"),
    "five columns": ({"weight": last(128, 64, 3, 5)}, r"a weight \[128, 64, 3, 5\]$"),
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
    assert hopper_cut._steps(far.shape, far.stride(), 2) is None
    assert hopper_cut._steps(far[:1].shape, far.stride(), 2) == (128, 1024, 8192, 8192)


@pytest.mark.parametrize("alone", [True, False])
def test_a_rehearsal_launches_nothing_and_asks_the_level_below_too(
    alone: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's picture may be too small for the kernel, the rehearsal's always is."""
    module = import_module("tvae.kernels.cuda.conv_add")
    monkeypatch.setattr(hopper_conv, "_BUSY", 2.0)
    others: list[str] = []
    monkeypatch.setattr(module.cudnn_sum, "check", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(module, "implementation", lambda *_: lambda *_: others.append("the level below"))
    x, weight, residual = last(2, 64, 40, 30), last(256, 64, 3, 3), last(2, 256, 40, 30)
    queues: list[bool] = []
    want = Builds.want
    monkeypatch.setattr(Builds, "want", lambda *a, **k: (queues.append(k.get("alone", False)), want(*a, **k))[1])
    with rehearsal() as builds:
        y, parts = module.conv_add(x, weight, None if alone else residual, None, ALL, None, True)
        assert others == ["the level below"]
        module.conv_add(x[:, :, 1:], weight, residual, None, (1, 1, 1, 2), None, False)
    assert others[-1] == "the level below"
    assert (y.shape, parts.shape) == ((2, 256, 40, 30), (2, 12, 3, 256))
    assert len(builds) == 2
    assert queues == [True, True], "NVRTC waits for none of Triton's builds"
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
    machine_of(monkeypatch)  # without cuDNN's frontend other weights still have the kernel
    weight = last(128, 64, 1, 1)
    with pytest.raises(Unsupported, match=r"a weight .*; no cuDNN") as refused:
        module.conv_add(x, weight, last(1, 128, 8, 8), None, ALL, None, True)
    assert not isinstance(refused.value, Failed)
