"""A run need not hear of each item at once while its device has work for a while, and only then."""

from __future__ import annotations

import random

from tvae.pipeline.jobs.devices.enough import LEAST, SECONDS, Enough


class Clock:
    """Stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def ended(enough: Enough, clock: Clock, each: float, count: int) -> list[bool]:
    """What is said of items that take so long each."""
    said = []
    for _ in range(count):
        clock.now += each
        said.append(enough.ended())
    return said


def test_slow_items() -> None:
    clock = Clock()
    enough = Enough(clock)
    enough.given(30)
    enough.given(10)
    said = ended(enough, clock, 10.0, 40)
    assert said == [False] * (LEAST - 1) + [True] * (40 - 2 * LEAST + 1) + [False] * LEAST


def test_quick_items_need_more_of_them() -> None:
    clock = Clock()
    enough = Enough(clock)
    enough.given(400)
    said = ended(enough, clock, SECONDS / 200.5, 400)
    assert said == [False] * (LEAST - 1) + [True] * (400 - 200 - LEAST) + [False] * 201


def test_time_without_items_does_not_count() -> None:
    clock = Clock()
    enough = Enough(clock)
    enough.given(1)
    ended(enough, clock, 1.0, 1)
    clock.now += 1000.0
    enough.given(100)
    assert not any(ended(enough, clock, 1e-6, 100)), "they are over in a moment"


def test_a_device_never_waits_for_what_is_said_later() -> None:
    """Items of any time each, given as a run gives them: refilled up to 64, a tenth of a second after what is said at
    once, or with what was to wait for more, after a second."""
    for seed in range(50):
        draw = random.Random(seed)
        clock, each = Clock(), 10 ** draw.uniform(-3, 1)
        enough, hand = Enough(clock), 8
        enough.given(hand)
        news: list[float] = []
        idle = 0.0
        for _ in range(400):
            while news and news[0] <= clock.now:
                news.pop(0)
                more = min(64, hand + 2) - hand
                hand += more
                enough.given(more)
            if not hand:
                idle += max(0.0, news[0] - clock.now)
                clock.now = max(clock.now, news[0])
                continue
            clock.now += each
            hand -= 1
            if enough.ended():
                news.append(clock.now + 1.1)
            else:  # and what waited comes along
                news = [min(at, clock.now + 0.1) for at in (*news, clock.now + 0.1)]
        if each > 0.02:  # else a hand is over before any news are there
            assert idle == 0, (seed, each)
