"""Names that came before, by a set, and the memory that they take."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tvae.pipeline.batch.seen import Seen


def test_as_a_set_tells() -> None:
    rng, seen, known = random.Random(1), Seen(), set[str]()
    for _ in range(20_000):
        name = f"{rng.randrange(8_000)}.png"
        assert seen.add(name) == (name in known)
        known.add(name)


@pytest.mark.long
def test_names_that_fall_on_one_place() -> None:
    """Equal last bits, and the hash that stands for a free place."""

    class Named(str):
        def __new__(cls, bits: int) -> Named:
            made = super().__new__(cls, bits)
            made.bits = bits
            return made

        bits: int

        def __hash__(self) -> int:
            return self.bits

        def __eq__(self, other: object) -> bool:
            return self is other

    seen, names = Seen(), [Named(n << 40) for n in range(3_000)]
    assert not any(map(seen.add, names))
    assert all(map(seen.add, names))


@pytest.mark.long
def test_memory() -> None:
    tracemalloc.start()
    try:
        seen = Seen()
        for number in range(100_000):
            seen.add(f"folder/{number}.png")
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 25 * 100_000
    assert peak < 40 * 100_000, "while it grows"
