"""PSNR and SSIM against their formulas written out position by position."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tvae.pipeline.jobs.metrics import Quality, QualityMeter, ssim


def plain_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Wang 2004, equation 13, one window at a time in float64."""
    offsets = np.arange(11) - 5
    line = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for channel in range(3):
        a, b = x[..., channel].astype(float), y[..., channel].astype(float)
        for top in range(a.shape[0] - 10):
            for left in range(a.shape[1] - 10):
                p, q = a[top : top + 11, left : left + 11], b[top : top + 11, left : left + 11]
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
                cov = (window * (p - mp) * (q - mq)).sum()
                values.append((2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(values))


def frames(seed: int, height: int = 17, width: int = 14, noise: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    y = np.clip(x + rng.integers(-noise, noise + 1, x.shape), 0, 255).astype(np.uint8)
    return x, y


@pytest.mark.parametrize("noise", [1, 30, 200])
def test_ssim_is_the_formula(noise: int) -> None:
    x, y = frames(noise, noise=noise)
    assert ssim(x, y) == pytest.approx(plain_ssim(x, y), abs=1e-5)


def test_ssim_of_nearly_constant_bright_frames() -> None:
    x = np.full((16, 16, 3), 250, dtype=np.uint8)
    y = x.copy()
    y[8, 8] = 251
    assert ssim(x, y) == pytest.approx(plain_ssim(x, y), abs=1e-5)


def test_psnr_pools_the_error_over_frames() -> None:
    pairs = [frames(1), frames(2, noise=5)]
    meter = QualityMeter()
    for pair in pairs:
        meter.add(*pair)
    error = np.mean([(x.astype(float) - y) ** 2 for x, y in pairs])
    assert meter.result().psnr == pytest.approx(10 * math.log10(255**2 / error))
    assert meter.result().frames == 2


def test_equal_and_tiny_pictures() -> None:
    meter = QualityMeter()
    tiny = np.zeros((3, 5, 3), dtype=np.uint8)
    meter.add(tiny, tiny)
    quality = meter.result()
    assert math.isinf(quality.psnr)
    assert quality.ssim is None
    assert json.loads(json.dumps(quality.to_json(), allow_nan=False)) == {"psnr": None, "ssim": None, "frames": 1}


def test_mean_of_items_counts_each_item_once() -> None:
    mean = Quality.mean([Quality(30.0, 0.8, 1), Quality(40.0, None, 100)])
    assert mean == Quality(35.0, 0.8, 101)


def test_different_shapes_are_refused() -> None:
    x, y = frames(0)
    with pytest.raises(ValueError, match="different shapes"):
        QualityMeter().add(x, y[:-1])
