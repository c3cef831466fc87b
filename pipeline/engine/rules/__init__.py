"""One rule per ATen operation, one file per kind of rule, one registry."""

from tvae.pipeline.engine.rules import (
    attention,
    einsum,
    enlarge,
    factory,
    interpolate,
    narrow,
    norm,
    order,
    pointwise,
    pool,
    products,
    reduce,
    resample,
    residual,
    scatter,
    shape,
    slices,
    window,
)
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import BORN, RULES, NoRule

__all__ = [
    "BORN",
    "RULES",
    "Context",
    "NoRule",
    "attention",
    "einsum",
    "enlarge",
    "factory",
    "interpolate",
    "narrow",
    "norm",
    "order",
    "pointwise",
    "pool",
    "products",
    "reduce",
    "resample",
    "residual",
    "scatter",
    "shape",
    "slices",
    "window",
]
