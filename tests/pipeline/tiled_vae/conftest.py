"""One small model, and the TiledVAE around it."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_vaes import TINY
from torch import nn

from tvae.pipeline import TiledVAE


@pytest.fixture(scope="module")
def model() -> Any:
    return TINY["AutoencoderKL"].build()


@pytest.fixture(scope="module")
def tiled(model: nn.Module) -> Any:
    return TiledVAE(model, strip=4)
