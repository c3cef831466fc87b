"""What a sweep takes for a wrong number, and what for chance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sweeping.numbers import compared, compared_again, errors_of
from tiny_vaes import relative_l2
from torch import Tensor


def noisy(exact: Tensor, size: float, seed: int) -> Tensor:
    return exact + size * torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed))


def judged(value: Tensor, own: Tensor, exact: Tensor) -> Any:
    latents = exact.shape[0] * exact.shape[-1] * exact.shape[-2] // 64
    return compared(errors_of(value, exact), errors_of(own, exact), latents)


def test_errors_are_relative_l2() -> None:
    exact = torch.randn(2, 3, 5, 70, 9, generator=torch.Generator().manual_seed(0))
    value = noisy(exact, 0.01, 1)
    errors = errors_of(value, exact)
    assert errors.relative == pytest.approx(relative_l2(value, exact), rel=1e-6)
    assert (len(errors.blocks), len(errors.rows), len(errors.frames)) == (2 * 64, 2 * 70, 2 * 5)
    for each in (errors.rows, errors.frames):
        assert each.sum() == pytest.approx(float(errors.blocks.sum()))
    with pytest.raises(ValueError, match="results of"):
        errors_of(value[..., 1:], exact)


def test_chance_is_allowed_for_and_no_more() -> None:
    exact = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    own = noisy(exact, 0.01, 1)
    assert judged(noisy(exact, 0.01, 2), own, exact).fine
    assert not judged(noisy(exact, 0.0107, 2), own, exact).fine
    small, near = exact[..., :16, :16], own[..., :16, :16]
    allowed = [judged(noisy(small, 0.01, seed), near, small) for seed in range(40)]
    assert all(each.fine for each in allowed)
    assert max(each.ratio for each in allowed) > 1.02
    assert not judged(noisy(small, 0.04, 2), near, small).fine


def test_a_wrong_row_is_no_chance() -> None:
    """Of a large output, and of a small one."""
    for size in (512, 48):
        exact = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
        own, value = noisy(exact, 0.01, 1), noisy(exact, 0.01, 2)
        assert judged(value, own, exact).fine
        value[..., size // 2, :] += 0.05
        assert not judged(value, own, exact).fine
        value[..., 0, 0] = torch.nan
        assert not judged(value, own, exact).fine


def test_a_band_that_is_somewhat_wrong_is_no_chance() -> None:
    """Blocks differ by it, and tell of much chance: large outputs have little, whatever they say."""
    exact = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    own, value = noisy(exact, 0.01, 1), noisy(exact, 0.01, 2)
    value[..., 64:128, 64:192] += 0.035
    found = judged(value, own, exact)
    assert found.worst < 4
    assert not found.fine


def test_a_wrong_frame_is_no_chance() -> None:
    exact = torch.randn(1, 3, 33, 48, 48, generator=torch.Generator().manual_seed(0))
    own, value = noisy(exact, 0.01, 1), noisy(exact, 0.01, 2)
    assert judged(value, own, exact).fine
    value[:, :, 4] += 0.05
    assert judged(value, own, exact).worst > 4


def test_other_inputs_tell_chance_from_bias() -> None:
    """Errors that are the same everywhere in an output: no block knows how much of them is chance."""

    def pairs(times: float) -> list[Any]:
        sizes = torch.exp(0.25 * torch.randn(12, 2, generator=torch.Generator().manual_seed(3)))
        exact = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        return [
            (errors_of(noisy(exact, 0.01 * times * a, n), exact), errors_of(noisy(exact, 0.01 * b, 50 + n), exact))
            for n, (a, b) in enumerate(sizes.tolist())
        ]

    assert compared_again(pairs(1.0)).fine
    assert not compared_again(pairs(1.6)).fine
    assert compared_again(pairs(1.0)).allowed == pytest.approx(1.02 * (1 + 3 * 0.25 * 2**0.5 / 12**0.5), rel=0.12)


def test_nothing_rounded_is_nothing_wrong() -> None:
    exact = torch.randn(1, 3, 8, 8)
    assert judged(exact, exact, exact).fine
    assert judged(noisy(exact, 1e-7, 0), exact, exact).fine
    assert not judged(noisy(exact, 1e-3, 0), exact, exact).fine
