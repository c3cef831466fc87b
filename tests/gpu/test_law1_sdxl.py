"""Law 1 on a GPU: Stable Diffusion XL's VAE in bfloat16 and float16 at full sizes.

The error against the float32 model (the stored weights cast up) is at most 1.02 times the untiled model's own in that
type. Prints a table with times and peak memory of both, and of diffusers' blended tiling, warm, in the same process.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_vaes import TinyVAE, relative_l2, result, waves

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SDXL = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "sample_size": 1024,
        "force_upcast": False,  # or float16 would be computed in float32
    },
    (4, None),
    8,
)


@pytest.fixture(scope="module")
def model() -> Any:
    return SDXL.build().cuda()


def _timed(run: Callable[[], Any]) -> tuple[float, float]:
    """(median milliseconds of five calls after the recorded one, peak GiB of one)."""
    for _ in range(RECORDED_AT + 1):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), (torch.cuda.max_memory_allocated() - before) / 2**30


@pytest.mark.parametrize("size", [1024, 2048])
@pytest.mark.parametrize("side", ["decode", "encode"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_error_is_at_most_the_untiled_models(model: Any, dtype: torch.dtype, side: str, size: int) -> None:
    low = copy.deepcopy(model).to(dtype)
    exact = copy.deepcopy(low).float()
    shape = (1, 4, size // 8, size // 8) if side == "decode" else (1, 3, size, size)
    x = waves(shape).cuda().to(dtype)
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        reference = result(getattr(exact, side)(x.float()))
        own = relative_l2(result(getattr(low, side)(x)), reference)
        untiled = _timed(lambda: getattr(low, side)(x))
        low.enable_tiling()
        blended = relative_l2(result(getattr(low, side)(x)), reference), _timed(lambda: getattr(low, side)(x))
        low.disable_tiling()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    del exact
    name = f"{side} {size} {str(dtype).removeprefix('torch.'):8}"
    print(f"\n{name} untiled     error {own:.5f}  {untiled[0]:7.1f} ms {untiled[1]:6.2f} GiB")
    print(f"{name} blended     error {blended[0]:.5f}  {blended[1][0]:7.1f} ms {blended[1][1]:6.2f} GiB")
    for strip in (None, 32):
        tiled = TiledVAE(low, preset="h200", strip=strip)
        error = relative_l2(result(getattr(tiled, side)(x)), reference)
        taken = _timed(lambda t=tiled: getattr(t, side)(x))
        print(f"{name} strip {strip or 'auto':>5} error {error:.5f}  {taken[0]:7.1f} ms {taken[1]:6.2f} GiB", end="  ")
        print(f"x{error / own:.3f} error, x{taken[0] / untiled[0]:.2f} time")
        assert 0 < error <= 1.02 * own


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_float32_on_the_gpu_is_within_law_one(model: Any, side: str) -> None:
    wide = copy.deepcopy(model).double()
    x = waves((1, 4, 45, 32) if side == "decode" else (1, 3, 360, 256)).cuda()
    with torch.no_grad():
        reference = result(getattr(wide, side)(x.double()))
    for strip in (1, 3, 5, 37):
        assert relative_l2(result(getattr(TiledVAE(model, strip=strip), side)(x)), reference) <= 1e-5
