"""Every level of the fused operations on a real GPU: random shapes and types against float64, and maps so large that
32 bits do not count their elements."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from random_calls import TYPES, last, random_case
from sweeping.untiled import exact_float32
from torch import Tensor

from tvae.kernels import cudnn_frontend
from tvae.kernels.check import deviation
from tvae.kernels.cuda import hopper_conv
from tvae.kernels.levels import LEVELS
from tvae.kernels.operations import (
    add_stats,
    conv_add,
    conv_from_few,
    conv_to_few,
    down_conv,
    enlarge,
    enlarge_conv,
    finish_stats,
    group_stats,
    linear,
    norm_act,
    pad,
    rms_norm_act,
    shuffle_up,
)
from tvae.kernels.oracle import Oracle
from tvae.kernels.registry import Unsupported, implementation, why_missing
from tvae.kernels.workspace import narrow_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

NORMS = (
    *("group_stats", "finish_stats", "norm_act", "add_stats", "rms_norm_act"),
    *("pad", "enlarge", "shuffle_up", "linear"),
    *("conv_add", "down_conv", "enlarge_conv", "conv_from_few", "conv_to_few"),
)
CASES = {"compile": 6}
"""Random cases of a level where not 40: every new shape is compiled."""


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    """As in every run of the engine: no products of ten bits."""
    with exact_float32():
        yield


def run_of(operation: str, level: str) -> Callable[..., Any]:
    run = implementation(operation, level)
    if run is None:
        pytest.skip(why_missing(level, operation) or f"{level} has no {operation}")
    return run


def takes(level: str, operation: str) -> bool:
    """Is the level to take this operation's usual calls? ``conv_add`` wants Hopper or cuDNN's frontend for ``cuda``."""
    able = cudnn_frontend.missing() is None or hopper_conv.missing() is None
    fused = level == "cuda" and operation == "conv_add" and able
    return level in ("native", "triton") or fused


@pytest.mark.parametrize("operation", NORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_random_calls(level: str, operation: str) -> None:
    run, pick = run_of(operation, level), random.Random(f"{level} {operation}")
    taken = 0
    for _ in range(CASES.get(level, 40)):
        case = random_case(operation, pick)
        try:
            found = deviation(case, run)
        except Unsupported:
            continue
        taken += 1
        assert found.passed, f"{case.label}: {found}"
    assert taken or not takes(level, operation)


REFUSED = {(name, torch.float32) for name in ("conv_from_few", "conv_to_few", "conv_add", "linear")}
"""Tensor cores would keep 10 bits of such values."""


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("operation", NORMS)
@pytest.mark.parametrize("level", ["triton", "cuda"])
def test_plain_channels_last_is_taken_and_captured(level: str, operation: str, dtype: torch.dtype) -> None:
    """Refusing it would be silent and slow; and it may not wait for the host, or no CUDA graph could hold it."""
    run, oracle = run_of(operation, level), Oracle(dtype, torch.device("cuda"))
    x = oracle.picture(1, 128, 96, 80)
    case = {
        "group_stats": lambda: group_stats.case(oracle, "", x),
        "finish_stats": lambda: finish_stats.case(oracle, "", 1, 128, 264, groups=32),
        "norm_act": lambda: norm_act.case(oracle, "", x),
        "add_stats": lambda: add_stats.case(oracle, "", x),
        "rms_norm_act": lambda: rms_norm_act.case(oracle, "", x),
        "pad": lambda: pad.case(oracle, "", x, (0, 1, 0, 1), "constant", "silu"),
        "enlarge": lambda: enlarge.case(oracle, "", x, (2, 2)),
        "shuffle_up": lambda: shuffle_up.case(oracle, "", x, (2, 2), 64),
        "conv_add": lambda: conv_add.case(oracle, "", 1, 64, 128, 192, 160),  # fewer pixels are left to Triton
        "down_conv": lambda: down_conv.case(oracle, "", 1, 64, 128, 192, 160),
        "enlarge_conv": lambda: enlarge_conv.case(oracle, "", 1, 64, 128, 96, 80),
        "conv_from_few": lambda: conv_from_few.case(oracle, "", 1, 3, 128, 96, 80),
        "conv_to_few": lambda: conv_to_few.case(oracle, "", 1, 128, 3, 96, 80),
        "linear": lambda: linear.case(oracle, "", (2, 500, 128), 256),
    }[operation]()
    try:
        assert deviation(case, run).passed
    except Unsupported:
        assert not takes(level, operation) or (operation, dtype) in REFUSED
        pytest.skip("not taken by this level")
    arguments, graph = case.fresh(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(*arguments)
    graph.replay()
    torch.cuda.synchronize()
    assert deviation(case, lambda *_: result).passed


ROWS = 4104
"""Of a square map of 128 channels: 2.16e9 elements."""


@pytest.fixture(scope="module")
def large() -> Tensor:
    if torch.cuda.get_device_properties(0).total_memory < 60e9:
        pytest.skip("needs 60 GB of GPU memory")
    made = torch.empty((1, ROWS, ROWS, 128), dtype=torch.bfloat16, device="cuda")
    random_bits = torch.Generator("cuda").manual_seed(0)
    for rows in made.split(512, 1):  # the mean grows with the row, so that every row counts
        rows.copy_(torch.randn(rows.shape, device="cuda", generator=random_bits))
    made += torch.linspace(0, 3, ROWS, device="cuda").to(torch.bfloat16).view(1, -1, 1, 1)
    return last(made)


def places() -> list[slice]:
    """Rows of the beginning, around 2^31 elements, and of the end."""
    around = 2**31 // (ROWS * 128)
    return [slice(0, 3), slice(around - 2, around + 3), slice(ROWS - 5, ROWS)]


def check_rows(y: Tensor, expected: Callable[[slice], Tensor]) -> None:
    assert y.numel() > 2**31
    for rows in places():
        want = expected(rows)
        assert ((y[:, :, rows].double() - want).norm() / want.norm()).item() < 2**-8


def check_sums(parts: Tensor, y: Tensor) -> None:
    """Statistics of all of y, a band of rows at a time in float64."""
    size = y.numel() // y.shape[1]
    bands = [y[:, :, at : at + 256] for at in range(0, y.shape[2], 256)]
    mean = sum(band.sum((2, 3), dtype=torch.float64) for band in bands) / size
    var = sum((band.double() - mean.view(1, -1, 1, 1)).square_().sum((2, 3)) for band in bands) / size
    count, means, m2 = parts.unbind(2)
    assert (count.sum(1) == size).all()
    got = (count * means).sum(1) / size
    assert ((got - mean).abs() / var.sqrt()).max().item() < 1e-6
    spread = (count * (means - got[:, None]).square()).sum(1)
    assert ((m2.sum(1) + spread) / size / var - 1).abs().max().item() < 1e-5


@pytest.mark.parametrize("level", LEVELS)
def test_statistics_of_more_than_32_bits_count(large: Tensor, level: str) -> None:
    check_sums(_taken(run_of("group_stats", level), large), large)


@pytest.mark.parametrize("level", LEVELS)
def test_affine_of_more_than_32_bits_count(large: Tensor, level: str) -> None:
    affine = torch.stack([torch.linspace(0.5, 2, 128), torch.linspace(-1, 1, 128)]).view(2, 1, 128).cuda()
    scale, shift = affine.double().view(2, 1, 128, 1, 1)
    y = _taken(run_of("norm_act", level), large, affine, "silu")
    check_rows(y, lambda rows: torch.nn.functional.silu(large[:, :, rows].double() * scale + shift))


@pytest.mark.parametrize("level", LEVELS)
def test_sums_of_more_than_32_bits_count(large: Tensor, level: str) -> None:
    residual, bias = large * 0.75, torch.linspace(-1, 1, 128).cuda()
    out = torch.empty_like(large)
    y, parts = _taken(run_of("add_stats", level), large, residual, bias, out, True)
    assert y is out
    shift = bias.double().view(1, -1, 1, 1)
    check_rows(y, lambda rows: large[:, :, rows].double() + residual[:, :, rows].double() + shift)
    check_sums(parts, y)


@pytest.mark.parametrize("level", LEVELS)
def test_norms_of_pixels_of_more_than_32_bits_count(large: Tensor, level: str) -> None:
    y = _taken(run_of("rms_norm_act", level), large, None, None, 1e-6, "rms", None)

    def expected(rows: slice) -> Tensor:
        x = large[:, :, rows].double()
        return x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()

    check_rows(y, expected)


def _taken(run: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or a skip where the level says that it does not take this."""
    try:
        return run(*arguments)
    except Unsupported as reason:
        pytest.skip(f"refused: {reason}")


@pytest.mark.parametrize("rows", [64, 2048])
def test_taps_take_what_plans_count(rows: int) -> None:
    """Beside operands and result; more rows than one band has, and fewer."""
    run = run_of("conv_to_few", "triton")
    arguments = conv_to_few.case(Oracle(torch.bfloat16, torch.device("cuda")), "", 1, 128, 3, rows, 1024).fresh()
    y = run(*arguments)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # memory kept from other tests comes in pieces of up to a MiB more than was asked for
    before, said = torch.cuda.memory_allocated(), narrow_bytes(rows, 1024, arguments[1].shape)
    torch.cuda.reset_peak_memory_stats()
    again = run(*arguments)
    held = torch.cuda.max_memory_allocated() - before - again.nbytes
    assert torch.equal(again, y)
    assert 0.9 * said <= held <= 1.02 * said
