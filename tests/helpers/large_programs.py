"""Programs of pictures so large that they are planned and never computed."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from small_models import Attention, Block, LinearAttention, Residual, TwoNorms, graph_of

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower

__all__ = ["HEIGHTS", "KINDS", "kinds", "large", "program_of"]

HEIGHTS = (16, 8, 4, 2, 1)
KINDS = [Residual, TwoNorms, Attention, LinearAttention]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)


@lru_cache
def program_of(kind: type[Block], height: int, width: int) -> Program:
    """Nothing is computed at this size, so that it may be large."""
    graph = graph_of(kind)
    sizes = graph.bind([(2, 3, height, width)])
    assert sizes is not None
    return lower(graph, sizes, torch.device("cpu"))


def large(kind: type[Block]) -> Program:
    """Two pictures of 3 x 2048 x 512 values: buffers of 128 MiB."""
    return program_of(kind, 2048, 512)
