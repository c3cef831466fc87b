"""What ranks tell each other of a call: numbers, or why one of them can do no more of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import ThreadExchange, together

from tvae.pipeline.errors import RankError
from tvae.pipeline.session.failed_call import FailedCall
from tvae.pipeline.session.words import Words, of_error

LONG = "é" * 200


def in_three(do: Callable[[Words, int], Any]) -> list[Any]:
    return together(3, lambda exchange: do(words_of(exchange), exchange.rank))


def words_of(exchange: ThreadExchange) -> Words:
    return Words(None, exchange, on_host=True)


def told(do: Callable[[], object]) -> str:
    try:
        return str(do())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("count", [1, 3, 30, 31, 95])
def test_numbers_of_all(count: int) -> None:
    """However many."""
    mine = torch.arange(count) - (1 << 62)
    every = [[*range(rank - (1 << 62), rank - (1 << 62) + count)] for rank in range(3)]
    assert in_three(lambda words, rank: words.tell(mine + rank)()) == [every] * 3


@pytest.mark.parametrize("text", ["failed: no memory", LONG], ids=["short", "long"])
def test_one_that_fails_is_named_and_the_next_words_are_in_step(text: str) -> None:
    """It need not know how many numbers the others tell."""

    def do(words: Words, rank: int) -> list[str]:
        if rank == 1:
            words.tell_failed(text)
            first = ""
        else:
            first = told(words.tell(torch.arange(7)))
        return [first, told(words.tell(torch.tensor([rank])))]

    next_ = "[[0], [1], [2]]"
    (first, _), own, (last, _) = found = in_three(do)
    assert [one[1] for one in found] == [next_] * 3
    assert own[0] == ""
    assert first == last == f"RankError: rank 1 {text[:120]}"


def test_other_numbers_are_another_call() -> None:
    found = in_three(lambda words, rank: told(words.tell(torch.arange(3 + (rank == 2)))))
    assert all("makes another call than this one" in one for one in found)


def test_a_call_that_fails_before_its_first_word() -> None:
    """What is of this rank alone is not told."""

    def do(words: Words, rank: int) -> list[str]:
        failed, found = FailedCall(words, told_at_end=True), list[str]()

        def call(wrong: bool, of_all: bool) -> object:
            with failed.call(of_all=of_all):
                if wrong:
                    raise ValueError("an input")
                return words.tell(torch.tensor([rank]))()

        if rank == 0:
            found.append(told(lambda: call(True, False)))
        found.append(told(lambda: call(rank == 0, True)))
        return [*found, told(lambda: call(False, True))]

    right = "[[0], [1], [2]]"
    first, *others = in_three(do)
    assert first == ["ValueError: an input"] * 2 + [right]
    assert others == [["RankError: rank 0 failed in this call: ValueError: an input", right]] * 2


def test_errors_in_a_line() -> None:
    assert of_error(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert of_error(RankError("one\ntwo")) == "RankError: one"
