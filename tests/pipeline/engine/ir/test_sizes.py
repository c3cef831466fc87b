"""Expressions of sizes that come from a file: arithmetic alone, and little of it."""

from __future__ import annotations

import pytest

from tvae.pipeline.engine.ir.sizes import Size, all_hold, evaluate, symbols


@pytest.mark.parametrize(
    "expr",
    [
        *("9**9**9**9", "(s0**8)**9", "2**s0", "s0**65", "s0**-65", "'a'*9**9", "min(s0**9, 2)**8"),
        *(
            "s0.real",
            "[s0]",
            "f()()",
            "-" * 70_000 + "1",
            "(" * 300 + ")" * 300,
            "min(key=s0)",
            "lambda: 1",
            "1; 2",
            "",
        ),
    ],
)
def test_what_is_no_size(expr: str) -> None:
    with pytest.raises(ValueError, match="not a size expression"):
        evaluate(Size(expr), {"s0": 64})
    assert not all_hold([expr], {"s0": 64})


def test_what_is() -> None:
    assert evaluate(Size("(s0 + 1)//2 + s0**2"), {"s0": 4}) == 18
    assert evaluate(Size("(s0**-1)**-2"), {"s0": 4}) == 16
    assert all_hold(["8*s0 > 48", "sqrt(s0**2) == s0"], {"s0": 64})
    assert not all_hold(["s0 < min", "s0 > 0"], {"s0": 64})
    assert not all_hold(["int(1e300*1e300) > s0"], {"s0": 64})


def test_what_a_size_depends_on() -> None:
    assert symbols(Size("max(s0, 3)*s12 + 1")) == {"s0", "s12"}
    assert symbols(7) == set()
