"""The equivalence check passes the definitions and fails what is wrong, however slightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import OPERATIONS, Unsupported, implementation
from tvae.kernels.cases import measured_case, small_cases
from tvae.kernels.check import Deviation, deviation
from tvae.kernels.oracle import Case

CPU = torch.device("cpu")


def native(operation: str) -> Callable[..., Any]:
    found = implementation(operation, "native")
    assert found is not None
    return found


def cases(operation: str, dtype: torch.dtype = torch.float32) -> list[Case]:
    return [*small_cases(operation, dtype, CPU), measured_case(operation, dtype, CPU, 32, 16)]


def deviations(operation: str, run: Callable[..., Any], dtype: torch.dtype = torch.float32) -> list[Deviation]:
    return [deviation(case, run) for case in cases(operation, dtype)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_definitions_pass(operation: str, dtype: torch.dtype) -> None:
    for case in cases(operation, dtype):
        found = deviation(case, native(operation))
        assert found.passed, (case.label, found)


def one_pass(x: Tensor) -> Tensor:
    """The textbook's mistake: E[x²] - E[x]² in float32."""
    flat = x.float().flatten(2)
    mean, count = flat.mean(2), torch.full(flat.shape[:2], float(flat.shape[2]))
    return torch.stack([count, mean, (flat.square().mean(2) - mean.square()) * count], 1).double().unsqueeze(1)


def lost_row(x: Tensor) -> Tensor:
    return native("group_stats")(x[:, :, 1:])


def plain_mean_of_blocks(parts: Tensor, *rest: Any) -> Tensor:
    """Blocks weighted alike, whatever their pixels."""
    return native("finish_stats")(parts.clone().index_fill_(2, torch.tensor(0), 5.0), *rest)


def no_offset(parts: Tensor, groups: int, eps: float, weight: Any, bias: Any, offset: Any) -> Tensor:
    return native("finish_stats")(parts, groups, eps, weight, bias, None)


def relu(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    y = native("norm_act")(x, affine, None)
    return y if act is None else F.relu(y)


def one_wrong_pixel(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    y = native("norm_act")(x, affine, act)
    y[(-1,) * y.ndim] += 0.2
    return y


def first_sample_for_all(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    return native("norm_act")(x, affine[:, :1].expand_as(affine), act)


def not_finite(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    return native("norm_act")(x, affine, act) * torch.nan


def ignores_out(x: Tensor, residual: Any, bias: Any, out: Any, stats: bool) -> Any:
    return native("add_stats")(x, residual, bias, None, stats)


def no_bias(x: Tensor, residual: Any, bias: Any, out: Any, stats: bool) -> Any:
    return native("add_stats")(x, residual, None, out, stats)


def statistics_of_the_input(x: Tensor, residual: Any, bias: Any, out: Any, stats: bool) -> Any:
    before = native("group_stats")(x) if stats else None
    return native("add_stats")(x, residual, bias, out, False)[0], before


def no_statistics(x: Tensor, residual: Any, bias: Any, out: Any, stats: bool) -> Any:
    return native("add_stats")(x, residual, bias, out, False)


def over_all_pixels(
    x: Tensor, weight: Any, bias: Any, eps: float, form: str, act: str | None, _: Any, out: Any
) -> Tensor:
    mean = x.square().mean(dim=tuple(range(1, x.ndim)), keepdim=True)
    return native("rms_norm_act")(x / (mean + 1).sqrt(), weight, bias, 1.0, "rms", act, None, out)


def forgets_the_offset(
    x: Tensor, weight: Any, bias: Any, eps: float, form: str, act: str | None, _: Any, out: Any
) -> Tensor:
    return native("rms_norm_act")(x, weight, bias, eps, form, act, None, out)


def leaves_the_place_empty(x: Tensor, *rest: Any) -> Tensor:
    return native("rms_norm_act")(x, *rest[:-1], None)


def zeros_for_all(x: Tensor, amounts: Any, mode: str, affine: Any, act: str | None) -> Tensor:
    return native("pad")(x, amounts, "constant", affine, act)


def normalises_the_border(x: Tensor, amounts: Any, mode: str, affine: Any, act: str | None) -> Tensor:
    y = native("pad")(x, amounts, mode, None, None)
    return y if affine is None else native("norm_act")(y, affine, act)


def by_blocks(x: Tensor, factors: Any) -> Tensor:
    """Repeats the picture, not its pixels."""
    return x.repeat(1, 1, *factors)


def sees_the_future(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    return native("wide_attention")(q, k, v, scale, False)


def one_missing_key(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    return native("wide_attention")(q, k[:, :, 1:], v[:, :, 1:], scale, causal)


def transposes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Where the weight is square, so that the shapes fit."""
    square = weight.shape[0] == weight.shape[1]
    return native("linear")(x, weight.T if square else weight, bias)


def without_bias(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return native("linear")(x, weight, None)


def cuts_off(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    half = 127.5 if dtype == torch.uint8 else 32767.5
    return ((pixels.float() + 1) * half).clamp(0, 2 * half).permute(0, 2, 3, 1).to(dtype)


def forgets_the_border(x: Tensor, weight: Tensor, residual: Any, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    """Of the convolution that is computed as if the picture ended where the band does."""
    y = torch.nn.functional.conv2d(x, weight, padding=1)[:, :, : x.shape[2] + pads[2] + pads[3] - 2]
    return native("add_stats")(y, residual, bias, y if out is None else out, stats)


def adds_nothing(x: Tensor, weight: Tensor, residual: Any, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    return native("conv_add")(x, weight, None, bias, pads, out, stats)


def needs_a_residual(x: Tensor, weight: Tensor, residual: Any, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    y, parts = native("conv_add")(x, weight, residual, bias, pads, out, stats)
    return (y + 1 if residual is None else y), parts


def enlarges_first(x: Tensor, taps: Tensor, *more: Any) -> Any:
    """A pixel late: as if the kernel lay elsewhere."""
    return native("enlarge_conv")(x, taps.roll(1, 3), *more)


def sees_the_nearest(x: Tensor, taps: Tensor, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    """Of the picture that is enlarged as if it ended where the band does."""
    y, parts = native("enlarge_conv")(x, taps, bias, (1, 1, 1, 1), None, stats)
    y = y[:, :, : 2 * (x.shape[2] + pads[2] + pads[3] - 2), : 2 * (x.shape[3] + pads[0] + pads[1] - 2)]
    return (y if out is None else out.copy_(y)), parts


def a_step_late(x: Tensor, weight: Tensor, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    return native("down_conv")(x.roll(-1, 3), weight, bias, pads, out, stats)


def zeros_on_both_sides(x: Tensor, weight: Tensor, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    y, parts = native("down_conv")(x, weight, bias, pads, None, stats)
    y = torch.nn.functional.conv2d(x, weight, bias, 2, 1)[:, :, : y.shape[2], : y.shape[3]]
    return (y if out is None else out.copy_(y)), parts


def as_many_for_all(x: Tensor, factors: Any, channels: int, other: Any, part: Any) -> Tensor:
    """The first channels enlarged, whatever becomes of the others."""
    y = native("enlarge")(x, factors)[:, torch.arange(channels) % x.shape[1]]
    y = y if part is None else y.narrow(2 + part[0], part[1], part[2] - part[1])
    return y if other is None else y + other


def leaves_the_sum_out(x: Tensor, factors: Any, channels: int, _other: Any, part: Any) -> Tensor:
    return native("shuffle_up")(x, factors, channels, None, part)


def begins_with_the_first_row(x: Tensor, factors: Any, channels: int, other: Any, part: Any) -> Tensor:
    part = part and (part[0], 0, part[2] - part[1])
    return native("shuffle_up")(x, factors, channels, other, part)


def a_frame_late(x: Tensor, weight: Tensor, *more: Any) -> Tensor:
    return native("conv3d")(x.roll(1, 2), weight, *more)


def keeps_the_bias(x: Tensor, weight: Tensor, bias: Any, pads: Any, out: Any, stats: bool) -> Any:
    return native("conv_from_few")(x, weight, None, pads, out, stats)


def turned(x: Tensor, weight: Tensor, bias: Any, pads: Any, affine: Any, act: Any) -> Tensor:
    return native("conv_to_few")(x, weight.flip(2), bias, pads, affine, act)


def forgets_the_spread_of_means(parts: Tensor) -> Tensor:
    found = native("merge_stats")(parts).clone()
    found[:, :, 2] = parts[:, :, 2].sum(1, keepdim=True)
    return found


WRONG = {
    "group_stats": [one_pass, lost_row],
    "merge_stats": [lambda parts: parts.mean(1, keepdim=True), forgets_the_spread_of_means],
    "finish_stats": [plain_mean_of_blocks, no_offset],
    "norm_act": [relu, one_wrong_pixel, first_sample_for_all, not_finite],
    "add_stats": [ignores_out, no_bias, statistics_of_the_input, no_statistics],
    "rms_norm_act": [over_all_pixels, forgets_the_offset, leaves_the_place_empty],
    "pad": [zeros_for_all, normalises_the_border],
    "enlarge": [by_blocks],
    "shuffle_up": [as_many_for_all, leaves_the_sum_out, begins_with_the_first_row],
    "conv3d": [a_frame_late],
    "conv_add": [forgets_the_border, adds_nothing, needs_a_residual],
    "down_conv": [a_step_late, zeros_on_both_sides],
    "enlarge_conv": [enlarges_first, sees_the_nearest],
    "conv_from_few": [keeps_the_bias],
    "conv_to_few": [turned],
    "linear": [transposes, without_bias],
    "wide_attention": [sees_the_future, one_missing_key],
    "sample": [lambda mean, std, noise: mean + std * std * noise],
    "frames_to_tensor": [lambda frames, dtype: frames.permute(0, 3, 1, 2).to(dtype) / 128 - 1],
    "tensor_to_frames": [cuts_off],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("operation", "wrong"), [(name, fn) for name, wrong in WRONG.items() for fn in wrong])
def test_what_is_wrong_fails(operation: str, wrong: Callable[..., Any], dtype: torch.dtype) -> None:
    assert not all(found.passed for found in deviations(operation, wrong, dtype))


def test_every_operation_has_a_wrong_one() -> None:
    assert set(WRONG) == set(OPERATIONS)


def test_an_old_result_does_not_stand_for_a_new_one() -> None:
    """A kernel that writes nothing leaves what the last one left: that must not pass."""
    case = measured_case("add_stats", torch.float32, CPU, 16, 8)
    assert deviation(case, native("add_stats")).passed
    lazy = deviation(case, lambda x, residual, bias, out, stats: (out, native("group_stats")(case.expected)))
    assert not lazy.passed


def test_a_refusal_is_the_callers_to_handle() -> None:
    def refuses(*arguments: Any) -> Any:
        raise Unsupported("not on Sundays")

    with pytest.raises(Unsupported, match="Sundays"):
        deviation(small_cases("sample", torch.float32, CPU)[0], refuses)


def test_traffic_is_what_must_be_moved() -> None:
    """Bytes of a perfect implementation, counted by hand: 16 channels of 32x32 float32."""
    picture = 16 * 32 * 32 * 4
    of = {name: measured_case(name, torch.float32, CPU, 32, 16) for name in OPERATIONS}
    assert of["group_stats"].moved == picture
    assert of["norm_act"].moved == of["rms_norm_act"].moved == 2 * picture
    assert of["add_stats"].moved == 3 * picture
    assert of["wide_attention"].flops == 4 * 16 * 16 * 64  # 16 queries, 16 keys, a head of 64: two products
    assert of["frames_to_tensor"].moved == of["tensor_to_frames"].moved == 32 * 32 * 3 * (1 + 4)
