"""The queue of items is a list of which little is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.jobs.devices.item_queue import ItemQueue
from tvae.pipeline.jobs.outputs import Item


def item(number: int) -> Item:
    return Item(Path(f"{number}"), number, frozenset({"image"}), Path(), f"{number}", exact=False, to_latents=True)


class Counted(list[Item]):
    """Knows how many of its items were made."""

    made = 0

    def __iter__(self) -> Iterator[Item]:
        for one in super().__iter__():
            self.made += 1
            yield one


@given(st.integers(0, 8), st.lists(st.tuples(st.sampled_from("ftFLr"), st.integers(0, 9)), max_size=30))
def test_like_a_list(count: int, steps: list[tuple[str, int]]) -> None:
    model = [item(n) for n in range(count)]
    queue, late = ItemQueue([*model]), 100
    for what, number in steps:
        if what == "f":
            assert queue.first(number) == model[:number]
        elif what == "t" and number < len(model):
            queue.first(number + 1)
            assert queue.take(number) == model.pop(number)
        elif what == "r" and number < len(model):
            queue.remove(model.pop(number))
        elif what in "FL":
            new = [item(late + n) for n in range(number % 3)]
            late += len(new)
            model = new + model if what == "F" else model + new
            queue.put_first(new) if what == "F" else queue.put_last(new)
        assert len(queue) == len(model)
    assert queue.first(99) == model


def test_few_are_made() -> None:
    items = Counted(item(n) for n in range(100))
    queue = ItemQueue(items)
    assert [one.index for one in queue.first(2)] == [0, 1]
    queue.put_last([item(7)])
    assert items.made == 2
    assert len(queue) == 101
