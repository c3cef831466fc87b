"""Expressions of sizes that come from a file: arithmetic alone, and little of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_conditions_together() -> None:
    assert all_hold([], {})
    assert all_hold(["s0 > 1  # a remark", "s0 % 8 == 0 or s0 == 1", "s0 > 1  # a remark"], {"s0": 64})
    assert not all_hold(["s0 > 1 or s0 < 0", "s0 < 9"], {"s0": 64})
    assert not all_hold(["s0 > 1) or (s0 > 2"], {"s0": 64})
    assert not all_hold(["s0 > 1", "s1 > 1"], {"s0": 64})
    assert all_hold(["min > 3"], {"min": 4}), "a symbol may have a function's name"


CONDITIONS = st.sampled_from(
    ["s0 % 8 == 0", "s1 > 3", "s0 < s1 or s1 == 7", "s0 == s1", "10 // s1", "not s0 - 5", "s2 < 1"]
)


@given(st.lists(CONDITIONS, max_size=5), st.dictionaries(st.sampled_from(["s0", "s1", "s2"]), st.integers(0, 16)))
def test_conditions_together_are_those_alone(conditions: list[str], sizes: dict[str, int]) -> None:
    def holds(condition: str) -> bool:
        try:
            return bool(eval(condition, {}, sizes))
        except (NameError, ZeroDivisionError):
            return False

    assert all_hold(conditions, sizes) == all(holds(condition) for condition in conditions)
