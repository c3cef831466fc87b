"""One value that several calls borrow: it follows what they want, and is put back when they end."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tvae.pipeline.settings.shared import Value


def test_a_value_follows_what_calls_want() -> None:
    there = [7]
    value: Value[int, int] = Value(
        lambda: there[0], lambda n: there.__setitem__(0, n), lambda before, wanted: min(before, *wanted)
    )
    with ExitStack() as calls:
        change = calls.enter_context(value.borrowed(9))
        assert there == [7]
        change(5)
        assert there == [5]
        with value.borrowed(3):
            assert there == [3]
            change(4)
            assert there == [3]
        assert there == [4]
        there[0] = 6  # somebody else: what is put back from now on
        with value.borrowed(2):
            assert there == [2]
        assert there == [4]
    assert there == [6]
    with value.borrowed(2):
        there[0] = 5
    assert there == [5]


def test_a_setting_that_cannot_be_made_is_not_wanted_any_more() -> None:
    there = [7]

    def write(n: int) -> None:
        if n == 0:
            raise ValueError("no zero")
        there[0] = n

    value: Value[int, int] = Value(lambda: there[0], write, lambda before, wanted: min(before, *wanted))
    with value.borrowed(5):
        with pytest.raises(ValueError, match="no zero"), value.borrowed(0):
            pass
        with value.borrowed(4):
            assert there == [4]
    assert there == [7]
