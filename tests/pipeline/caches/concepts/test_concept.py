"""Concepts as their file has them. The checksums are those that OneTrainer and mgds gave for the same concepts."""

from __future__ import annotations

from typing import Any

import pytest
from concepts import concept

from tvae.pipeline.caches.concepts.concept import concept_of
from tvae.pipeline.errors import UsageError

GOLDEN: list[tuple[dict[str, Any], str]] = [
    (
        {"__version": 2, "path": "/data/cats", "seed": -12345},
        "730f1bf31a73edec9a6a632c6a7b938735f9f0c224af8a104e3ad713b46ef4fd",
    ),
    (
        {
            "__version": 2,
            "path": "C:\\data\\Bücher",
            "seed": 7,
            "include_subdirectories": True,
            "image": {
                "enable_crop_jitter": False,
                "random_hue_max_strength": 1,
                "resolution_override": 768,
                "enable_random_mask_rotate_crop": True,
            },
        },
        "f9179677f05cfa26c95e30f47562b3afc052867d13f77302db8b6d6d51130ece",
    ),
    (
        {"path": "a/b", "seed": 0, "repeats": 3, "validation_concept": True},
        "46d376624690e63c45080d98b1cb9e8b4ed3790da768e0f176b3f2d3c483beb9",
    ),
]


@pytest.mark.parametrize(("data", "key"), GOLDEN)
def test_the_name_of_its_cache(data: dict[str, Any], key: str) -> None:
    found = concept_of(data, "c")
    assert found is not None
    assert (found.key, found.path) == (key, data["path"])
    assert found.validates == ("validation_concept" in data)


def test_what_the_cache_does_not_depend_on() -> None:
    usual, other = concept_of(concept("a"), "c"), concept_of(concept("a", balancing=2.5, name="n", text={}), "c")
    assert usual == other


@pytest.mark.parametrize(
    ("image", "flip"),
    [
        ({}, "never"),
        ({"enable_fixed_flip": True}, "always"),
        ({"enable_fixed_flip": True, "enable_random_flip": True}, "chance"),
    ],
)
def test_flips(image: dict[str, Any], flip: str) -> None:
    found = concept_of(concept("a", image=image), "c")
    assert found is not None
    assert found.flip == flip


def test_one_that_is_off_is_left_out_whatever_else_it_says() -> None:
    assert concept_of(concept("a", enabled=False, image={"enable_random_hue": True}), "c") is None


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([], "is no concept"),
        ({"path": "a"}, r"c \('a'\): it has no seed"),
        ({"path": 3, "seed": 1}, "path must be a text, found 3"),
        ({"path": "a", "seed": True}, "no seed"),
        ({"path": "a", "seed": 1, "enabled": "yes"}, "enabled must be true or false, found 'yes'"),
        ({"path": "a", "seed": 1, "image": []}, "image must be an object"),
        ({"path": "a", "seed": 1, "image": {"enable_crop_jitter": 1}}, "enable_crop_jitter must be true or false"),
        (
            {"path": "a", "seed": 1, "image": {"random_hue_max_strength": "x"}},
            "random_hue_max_strength must be a number",
        ),
        ({"path": "a", "seed": 1, "image_variations": 0}, "image_variations must be a number from 1"),
        *(
            (concept("a", image={f"enable_{how}_{what}": True}), f"enable_{how}_{what} does; switch it off")
            for what in ("rotate", "brightness", "contrast", "saturation", "hue")
            for how in ("random", "fixed")
        ),
    ],
)
def test_anything_else_is_refused(data: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        concept_of(data, "c")


@pytest.mark.parametrize("name", ["path", "type", "enabled", "image_variations", "image"])
def test_a_refusal_is_short(name: str) -> None:
    fields = {"__version": 2, "path": "a", "seed": 1, name: ["x"] * 5000}
    data = {"path": "a", "seed": 1, "image": {"resolution_override": ["x"] * 5000}} if name == "image" else fields
    with pytest.raises(UsageError) as refused:
        concept_of(data, "c")
    assert len(str(refused.value)) < 200
