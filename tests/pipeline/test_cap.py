"""A named budget as a limit of PyTorch's allocator, on a stand-in for a card."""

from __future__ import annotations

import pytest
import torch

from tvae.pipeline.budget import CUDA_OWN
from tvae.pipeline.cap import capped

MIB = 1 << 20
GIB = 1 << 30
CARD = torch.device("cuda", 0)


class Card:
    """24 GiB; ``outside`` of them are not the allocator's. Remembers what the allocator was told, in bytes."""

    def __init__(self, outside: int, fraction: float = 1.0) -> None:
        self.outside, self.fraction, self.told = outside, fraction, list[float]()

    def tell(self, fraction: float, _device: torch.device) -> None:
        self.fraction = fraction
        self.told.append(fraction * 24 * GIB)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Card:
    found = Card(**request.param)
    reserved = 2 * GIB
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _d: (24 * GIB - reserved - found.outside, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _d: reserved)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _d: found.fraction)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", found.tell)
    return found


def cards(**kinds: dict[str, float]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("card", kinds.values(), ids=kinds.keys(), indirect=True)


@cards(alone={"outside": 500 * MIB})
def test_the_allocator_gets_what_the_context_leaves_and_then_all_again(card: Card) -> None:
    with capped(CARD, 8 * GIB):
        assert card.told == [pytest.approx(8 * GIB - 500 * MIB)]
    assert card.fraction == 1.0


@cards(shared={"outside": 9 * GIB})
def test_what_others_hold_is_not_taken_for_the_context(card: Card) -> None:
    with capped(CARD, 8 * GIB):
        assert card.told == [pytest.approx(8 * GIB - CUDA_OWN)]


@cards(limited={"outside": 500 * MIB, "fraction": 0.1})
def test_a_limit_that_somebody_set_stays(card: Card) -> None:
    def fails() -> None:
        with capped(CARD, 8 * GIB):
            raise RuntimeError("in the call")

    with pytest.raises(RuntimeError, match="in the call"):
        fails()
    assert card.told == [pytest.approx(2.4 * GIB), pytest.approx(2.4 * GIB)]
    assert card.fraction == 0.1


@cards(small={"outside": 500 * MIB})
def test_less_than_the_context_is_nothing(card: Card) -> None:
    with capped(CARD, 100 * MIB):
        assert card.told == [0.0]


@cards(alone={"outside": 500 * MIB})
def test_without_a_budget_or_a_card_nothing_changes(card: Card) -> None:
    with capped(CARD, None), capped(torch.device("cpu"), GIB):
        pass
    assert card.told == []
