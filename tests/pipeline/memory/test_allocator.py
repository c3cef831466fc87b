"""A named budget as a limit of PyTorch's allocator, on a stand-in for a card."""

from __future__ import annotations

import sys

import pytest
import torch

from tvae.pipeline.memory.allocator import capped

MIB = 1 << 20
GIB = 1 << 30
CARD = torch.device("cuda", 0)


class Card:
    """24 GiB; ``outside`` of them are not the allocator's, which has 2 GiB. Remembers what it was told, in bytes."""

    def __init__(self, outside: int, fraction: float = 1.0) -> None:
        self.outside, self.fraction, self.told, self.emptied = outside, fraction, list[float](), 0

    def tell(self, fraction: float, _device: torch.device) -> None:
        self.fraction = fraction
        self.told.append(fraction * 24 * GIB)

    def empty(self) -> None:
        self.emptied += 1


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Card:
    found = Card(**request.param)
    reserved = 2 * GIB
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _d: (24 * GIB - reserved - found.outside, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _d: reserved)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _d: found.fraction)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", found.tell)
    monkeypatch.setattr(torch.cuda, "empty_cache", found.empty)
    return found


def cards(**kinds: dict[str, float]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("card", kinds.values(), ids=kinds.keys(), indirect=True)


@cards(alone={"outside": 500 * MIB})
def test_the_allocator_gets_what_the_context_leaves_and_then_all_again(card: Card) -> None:
    with capped(CARD, 8 * GIB):
        assert card.told == [pytest.approx(8 * GIB - 596 * MIB)]
    assert card.fraction == 1.0


@cards(shared={"outside": 9 * GIB})
def test_what_others_hold_is_not_taken_for_the_context(card: Card) -> None:
    with capped(CARD, 8 * GIB):
        assert card.told == [pytest.approx(8 * GIB - 996 * MIB)]


@cards(laden={"outside": 930 * MIB})
def test_libraries_and_kernels_are_the_process_s_own(card: Card) -> None:
    with capped(CARD, 8 * GIB):
        assert card.told == [pytest.approx(8 * GIB - 1026 * MIB)]


@cards(loading={"outside": 500 * MIB})
def test_libraries_that_were_loaded_meanwhile_are_seen(card: Card) -> None:
    with capped(CARD, 8 * GIB) as limit:
        card.outside = 800 * MIB
        limit()
    assert card.told[1:] == [pytest.approx(8 * GIB - 896 * MIB), 24 * GIB]


@cards(alone={"outside": 500 * MIB})
def test_more_than_the_limit_is_not_kept(card: Card) -> None:
    with capped(CARD, 3 * GIB) as limit:
        assert card.emptied == 0
        card.outside = 1000 * MIB
        limit()
    assert card.emptied == 1


@cards(limited={"outside": 500 * MIB, "fraction": 0.1})
def test_a_limit_that_somebody_set_stays(card: Card) -> None:
    def fails() -> None:
        with capped(CARD, 8 * GIB):
            raise RuntimeError("in the call")

    with pytest.raises(RuntimeError, match="in the call"):
        fails()
    assert card.told == []
    assert card.fraction == 0.1


@cards(alone={"outside": 500 * MIB})
@pytest.mark.parametrize("first", [0, 1])
def test_of_calls_that_overlap_none_gets_more_than_it_named(card: Card, first: int) -> None:
    """The smallest budget holds for all, in whatever order they leave, and looks at it again; then all is as before."""
    calls = [capped(CARD, 8 * GIB), capped(CARD, 4 * GIB)]
    limits = [call.__enter__() for call in calls]
    four, eight = (pytest.approx((size * GIB - 596 * MIB) / (24 * GIB)) for size in (4, 8))
    assert card.fraction == four
    limits[0]()
    assert card.fraction == four
    calls[first].__exit__(None, None, None)
    assert card.fraction == (four if first == 0 else eight)
    limits[1 - first]()
    assert card.fraction == (four if first == 0 else eight)
    calls[1 - first].__exit__(None, None, None)
    assert card.fraction == 1.0


@cards(alone={"outside": 500 * MIB})
def test_cards_have_limits_of_their_own(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    fractions = {0: 1.0, 1: 0.9}
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda d: fractions[d.index])
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda f, d: fractions.update({d.index: f}))
    with capped(torch.device("cuda", 1), 8 * GIB):
        assert fractions == {0: 1.0, 1: pytest.approx((8 * GIB - 596 * MIB) / (24 * GIB))}
        with capped(CARD, 4 * GIB):
            assert fractions[0] < fractions[1] < 0.9
    assert fractions == {0: 1.0, 1: 0.9}


@cards(alone={"outside": 500 * MIB})
def test_a_limit_that_is_set_meanwhile_stays(card: Card) -> None:
    with capped(CARD, 8 * GIB):
        card.fraction = 0.1
    assert card.fraction == 0.1


@cards(small={"outside": 500 * MIB})
def test_less_than_the_context_is_nothing(card: Card) -> None:
    with capped(CARD, 100 * MIB):
        assert card.told == [0.0]


@cards(alone={"outside": 500 * MIB})
def test_without_a_budget_or_a_card_nothing_changes(card: Card) -> None:
    with capped(CARD, None) as limit, capped(torch.device("cpu"), GIB) as another:
        limit()
        another()
    assert card.told == []


@pytest.fixture
def settings(card: Card, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the allocator was told of its segments, on Linux."""
    told = list[str]()
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    return told


@cards(alone={"outside": 500 * MIB})
def test_segments_grow_and_shrink_under_a_budget_alone(card: Card, settings: list[str]) -> None:
    with capped(CARD, 8 * GIB):
        assert settings == ["expandable_segments:True"]
    assert settings == ["expandable_segments:True", "expandable_segments:False"]
    with capped(CARD, None):
        pass
    assert len(settings) == 2


@cards(alone={"outside": 500 * MIB})
def test_segments_are_asked_for_once_by_calls_that_overlap(card: Card, settings: list[str]) -> None:
    first, second = capped(CARD, 8 * GIB), capped(CARD, None, by_rows=True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert settings == ["expandable_segments:True"]
    second.__exit__(None, None, None)
    assert settings == ["expandable_segments:True", "expandable_segments:False"]


@cards(alone={"outside": 500 * MIB})
def test_where_results_leave_by_rows_segments_grow_and_shrink_without_a_limit(card: Card, settings: list[str]) -> None:
    with capped(CARD, None, by_rows=True):
        assert settings == ["expandable_segments:True"]
    assert settings == ["expandable_segments:True", "expandable_segments:False"]
    with capped(torch.device("cpu"), None, by_rows=True):
        pass
    assert len(settings) == 2
    assert card.told == []


@cards(alone={"outside": 500 * MIB})
@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("max_split_size_mb:64", "max_split_size_mb:64,expandable_segments:True"),
        ("expandable_segments:False", None),
        ("backend:cudaMallocAsync", None),
    ],
)
def test_what_the_user_chose_of_segments_stays(
    card: Card, settings: list[str], monkeypatch: pytest.MonkeyPatch, chosen: str, told: str | None
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", chosen)
    with capped(CARD, 8 * GIB):
        assert settings == ([] if told is None else [told])


@cards(alone={"outside": 500 * MIB})
def test_segments_stay_as_they_are_where_the_system_has_no_others(
    card: Card, settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with capped(CARD, 8 * GIB):
        assert card.told == [pytest.approx(8 * GIB - 596 * MIB)]
    assert settings == []
