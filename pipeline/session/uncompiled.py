"""Calls from code that ``torch.compile`` compiles: the compiler does not look into tvae."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["uncompiled"]

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """The compiler calls this method where it comes upon it, as it does with ``print``, and compiles what is around.
    Its own module is imported by those who compile alone."""
    hidden: Any = torch._disable_dynamo(method)

    @functools.wraps(method)
    def either(*args: Any, **kwargs: Any) -> Any:
        return hidden(*args, **kwargs) if torch.compiler.is_dynamo_compiling() else method(*args, **kwargs)

    return either  # type: ignore[return-value]
