"""Rules: one per ATen operation, one file per kind of operation. Importing the files fills the registry."""

from tvae.pipeline.engine.rules import (  # noqa: F401
    attention,
    convolution,
    fused_conv,
    indexing,
    norm,
    pointwise,
    products,
    reduce,
    resample,
    rows_from_constants,
    shape,
    window,
)
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import CREATES_ROWS, RULES, NoRule

__all__ = ["CREATES_ROWS", "RULES", "Context", "NoRule"]
