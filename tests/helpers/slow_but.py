"""Cases that differ only in family, side, size or type: the default run takes a few, the slow one the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["slow_but"]


def slow_but(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases as parameters, marked slow but for the quick ones, each of which must be among them."""
    cases = list(cases)
    unknown = [case for case in quick if case not in cases]
    assert not unknown, f"no such cases: {unknown}"
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=() if case in quick else pytest.mark.slow)
        for case in cases
    ]
