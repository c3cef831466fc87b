"""What OneTrainer's files say of a training, and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from concepts import concept, written

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.caches.concepts.settings import Settings, read_settings, resolutions
from tvae.pipeline.errors import UsageError


def read(folder: Path, config: Any = None, concepts: Any = None, *, sized: bool = False, **fields: Any) -> Settings:
    named = None if concepts is None else str(written(folder / "concepts.json", concepts))
    training = None if config is None else str(written(folder / "config.json", config))
    return read_settings(CacheRequest("onetrainer", concepts=named, config=training, **fields), sized=sized)


def test_what_it_says_nothing_of_is_as_onetrainer_has_it(tmp_path: Path) -> None:
    found = read(tmp_path, {"concepts": [concept("a"), concept("b", type="VALIDATION"), concept("c", enabled=False)]})
    assert [one.path for one in found.concepts] == ["a"]
    assert (found.architecture, found.resolution, found.buckets) == ("STABLE_DIFFUSION_15", "512", True)
    assert (found.dtype, found.instead) == ("float16", "bfloat16")


def test_what_it_says(tmp_path: Path) -> None:
    config = {
        "model_type": "QWEN",
        "resolution": 768,
        "train_dtype": "TFLOAT_32",
        "validation": True,
        "aspect_ratio_bucketing": False,
        "concepts": [concept("b", type="VALIDATION")],
    }
    found = read(tmp_path, config, [concept("v", type="VALIDATION"), concept("a")])
    assert [one.path for one in found.concepts] == ["a", "v"]
    assert (found.architecture, found.resolution, found.buckets, found.dtype) == ("QWEN", "768", False, "float32")


def test_concepts_alone(tmp_path: Path) -> None:
    found = read(tmp_path, concepts=[concept("a"), concept("v", type="VALIDATION")], sized=True)
    assert [one.path for one in found.concepts] == ["a"]
    assert {found.architecture, found.resolution, found.buckets, found.dtype} == {None}


@pytest.mark.parametrize(
    ("config", "fields", "told"),
    [
        ({"masked_training": True}, {}, "masked_training holds more, and tvae writes no masks"),
        ({"custom_conditioning_image": True}, {}, "writes no conditioning images"),
        ({"latent_caching": False}, {}, "latent_caching is off"),
        ({"training_method": "FINE_TUNE_VAE"}, {}, "FINE_TUNE_VAE"),
        ({"train_dtype": "FLOAT_8"}, {}, "train_dtype must be one of FLOAT_16"),
        ({"validation": 1}, {}, "validation must be true or false, found 1"),
        ({"resolution": None}, {}, "resolution must be a text"),
        ({"concepts": {}}, {}, "concepts must be a list"),
        ({"concepts": None}, {}, "training_concepts/concepts.json; name it with --concepts"),
        ({"concepts": [3]}, {}, "concept 1 is no concept"),
        ({}, {"sized": True}, "leave --size and --buckets out"),
        ({}, {"buckets": Buckets(False)}, "leave --size and --buckets out"),
        ({"model_type": "QWEN"}, {"architecture": "ERNIE"}, "is for QWEN, and --arch says ERNIE"),
        (None, {}, "name their file with --concepts"),
        ([], {}, "it holds a list, as of concepts: pass it as --concepts"),
        (None, {"concepts": {"a": 1}}, "is not a file of concepts of OneTrainer: it holds a single object"),
    ],
)
def test_refused(tmp_path: Path, config: Any, fields: dict[str, Any], told: str) -> None:
    given = {"concepts": [], **config} if isinstance(config, dict) else config
    with pytest.raises(UsageError, match=told):
        read(tmp_path, given, **fields)


@pytest.mark.parametrize(("text", "told"), [(None, "No such file|cannot find"), ("{", "is not a file of concepts")])
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_settings(CacheRequest("onetrainer", concepts=str(path)), sized=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [("512", (512,)), (" 512, 768", (512, 768)), ("512x768", ((512, 768),)), ("512,512", (512, 512))],
)
def test_resolutions(text: str, found: Any) -> None:
    assert resolutions(text, "--size") == found


@pytest.mark.parametrize(
    "text", ["", "x", "512x", "1x2x3", "512,", "0", "-5", "512x768,3", "٥١٢", "99999", "5.0", "9" * 5000]
)
def test_what_is_no_resolution(text: str) -> None:
    with pytest.raises(UsageError, match=r"c: .* is no resolution"):
        resolutions(text, "c")


def test_a_refusal_is_short(tmp_path: Path) -> None:
    for config in ({"resolution": ["x"] * 5000}, {"resolution": "9" * 5000}, {"concept_file_name": ["x"] * 5000}):
        with pytest.raises(UsageError) as refused:
            resolutions(str(read(tmp_path, config, [] if "resolution" in config else None).resolution), "c")
        assert len(str(refused.value)) < len(str(tmp_path)) + 200
