"""Law 1 in bfloat16 and float16, for every family: the error is at most 1.02 times the untiled model's own.

Tiny models have few values, and which of two ways of rounding is nearer to the exact result is chance there: single
ratios lie between 0.8 and 1.2. So the law is asked of the mean over several weights and inputs, within three standard
errors of it, which are small enough to tell a fault: ``test_a_fault_shows``. Large outputs are held to it one by one,
on a GPU (``tests/gpu/test_law1_sdxl.py``, the sweep).
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator

import pytest
import torch
from sweeping.numbers import LAW, errors_of
from tiny_vaes import TINY, TinyVAE, result
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode

WEIGHTS, INPUTS = 4, 3
CHANCE = 0.12
"""Three standard errors at most: of a mean that is less sure nothing would be said."""
NOT_ON_A_CPU = {("AutoencoderKLCosmos", "encode"): "PyTorch pools no clips of 16 bits on a CPU"}
QUICK = {("AutoencoderKL", "decode", torch.bfloat16)}
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id="-".join(map(str, case)))
    for case in (
        (f, side, dtype) for f in TINY for side in ("encode", "decode") for dtype in (torch.bfloat16, torch.float16)
    )
    if case[:2] not in NOT_ON_A_CPU
]


def outputs(tiny: TinyVAE, side: str, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Ours in strips of three latent rows, the untiled model's, and the exact one for the same weights and input."""
    extra = tiny.extra(side)
    for weights in range(WEIGHTS):
        low = tiny.build(seed=weights)
        nn.Module.to(low, dtype)  # its own ``to`` would warn of modules to keep in float32
        exact = copy.deepcopy(low).double()
        tiled = TiledVAE(low, "cpu", strip=3)
        for seed in range(INPUTS):
            x = tiny.input(side, 9, 7, seed=seed).to(dtype)
            with torch.no_grad(), reference_mode(exact):
                wanted = result(call_reference(exact, side, x.double(), **extra))  # type: ignore[arg-type]
            with torch.no_grad(), reference_mode(low):
                own = result(call_reference(low, side, x, **extra))  # type: ignore[arg-type]
            yield result(getattr(tiled, side)(x, **extra)), own, wanted


def mean_of(ratios: list[float]) -> tuple[float, float]:
    """The geometric mean, and three standard errors of its logarithm."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.mean(logs)), 3 * statistics.stdev(logs) / math.sqrt(len(logs))


@pytest.mark.long
@pytest.mark.parametrize(("family", "side", "dtype"), CASES)
def test_every_family_errs_no_more_than_the_untiled_model(family: str, side: str, dtype: torch.dtype) -> None:
    """The worst of all is no worse than theirs, either. DC-AE's attention divides by a sum of few tokens: where that
    is nearly nothing, whatever was rounded is ten times as much, of whichever of the two it hits."""
    errors = []
    for ours, own, wanted in outputs(TINY[family], side, dtype):
        assert ours.dtype == own.dtype == dtype
        errors.append((errors_of(ours, wanted).relative, errors_of(own, wanted).relative))
    mean, chance = mean_of([mine / theirs for mine, theirs in errors])
    assert mean <= LAW * math.exp(min(chance, CHANCE)), errors
    mine, theirs = zip(*errors, strict=True)
    assert max(mine) <= 1.5 * max(theirs)


@pytest.mark.slow
def test_a_fault_shows() -> None:
    """An error of a quarter more is found by the same rule."""
    ratios = []
    for ours, own, wanted in outputs(TINY["AutoencoderKLWan"], "encode", torch.float16):
        rounding = (own.double() - wanted).flip(-1)  # errors of this size that are not ours
        off = ours.double() + 0.9 * rounding
        ratios.append(errors_of(off, wanted).relative / errors_of(own, wanted).relative)
    mean, chance = mean_of(ratios)
    assert chance < CHANCE
    assert mean > LAW * math.exp(chance)
