"""What chance gives out: the numbers that mgds's own modules gave for the same places."""

from __future__ import annotations

import pytest
from concepts import concept

from tvae.pipeline.caches import Framing
from tvae.pipeline.caches.concepts.chance import chosen, flips, jittered
from tvae.pipeline.caches.concepts.concept import concept_of
from tvae.pipeline.caches.concepts.entries import Entry

CHOSEN = {
    False: [160, 224, 160, 96, 224, 224, 160, 96, 224, 96, 224, 224],
    True: [96, 224, 160, 96, 224, 160, 224, 160, 160, 160, 224, 224],
}
CROPS = {
    False: [(123, 42), (6, 4), (87, 65), (25, 58), (36, 22), (5, 38)],
    True: [(181, 2), (39, 41), (183, 29), (168, 47), (70, 49), (184, 62)],
}
FLIPS = {False: ["10100101", "01110010"], True: ["11011110", "11000101"]}


def entry(index: int, variation: int, **image: bool) -> Entry:
    found = concept_of(concept("a", image=image), "c")
    assert found is not None
    return Entry(found, "a.png", index, 0, variation)


@pytest.mark.parametrize("timed", [False, True])
def test_resolutions(timed: bool) -> None:
    found = [chosen((96, 160, 224), entry(n, variation), timed=timed) for variation in (0, 1) for n in range(6)]
    assert found == CHOSEN[timed]


@pytest.mark.parametrize("timed", [False, True])
def test_crops(timed: bool) -> None:
    framing = Framing((600, 700), (44, 94, 512, 512), "smooth")
    found = [
        jittered(framing, entry(n, variation, enable_crop_jitter=True), timed=timed)
        for variation in (0, 2)
        for n in (0, 1, 7)
    ]
    assert [(one.crop[1], one.crop[0]) for one in found] == CROPS[timed]
    assert {one.crop[2:] for one in found} == {(512, 512)}
    assert jittered(framing, entry(7, 2), timed=timed) == framing


@pytest.mark.parametrize("timed", [False, True])
def test_flips(timed: bool) -> None:
    found = [
        "".join(str(int(flips(entry(n, variation, enable_random_flip=True), timed=timed))) for n in range(8))
        for variation in (0, 1)
    ]
    assert found == FLIPS[timed]
    assert flips(entry(0, 0, enable_fixed_flip=True), timed=timed)
    assert not flips(entry(0, 0), timed=timed)
