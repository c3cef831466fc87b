"""How far two results are from each other: latents, tensors of other programs, images, videos, and folders of them."""

from __future__ import annotations

from tvae.pipeline.comparison.compare import Comparison, compare
from tvae.pipeline.comparison.pairs import Pair, pairs

__all__ = ["Comparison", "Pair", "compare", "pairs"]
