"""Metadata: there and back, and what makes a cache stale."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.latents import Geometry, LatentsMeta, PartRecord, PosteriorRecord, SourceRecord
from tvae.pipeline.latents.meta import from_strings, to_strings


def test_json_there_and_back(clip_meta: LatentsMeta) -> None:
    text = json.dumps(clip_meta.to_json())
    assert LatentsMeta.from_json(json.loads(text)) == clip_meta


def test_strings_there_and_back(clip_meta: LatentsMeta) -> None:
    part = PartRecord(3, 12, (0, 1001, None), (1001, None, 5), repeated=2)
    strings = to_strings(clip_meta, part)
    assert all(isinstance(value, str) for value in strings.values())
    assert (strings["format"], strings["version"], strings["kind"]) == ("tvae", "1", "video")
    assert from_strings({**strings, "modelspec.note": "of another tool"}) == (clip_meta, part)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "other"}, "format=tvae"),
        ({"version": 2}, "version 2"),
        ({"kind": "audio"}, "kind: expected one of image, video"),
        ({"rotation": "90"}, "rotation: expected int"),
        ({"rotation": True}, "rotation: expected int"),
        ({"sample_aspect_ratio": "1/0"}, "sample_aspect_ratio: expected a fraction"),
        ({"geometry": {"source_width": 1}}, "geometry.source_height is missing"),
        ({"geometry": {"source_width": 1, "source_height": 1, "pad": [0, 1]}}, "geometry.pad"),
        ({"vae": []}, "vae: expected an object"),
    ],
)
def test_what_does_not_fit_is_named(image_meta: LatentsMeta, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LatentsMeta.from_json({**image_meta.to_json(), **change})


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("vae", '{"spatial_factor": 0}', "spatial_factor: expected a number from 1"),
        ("vae", '{"latent_channels": -4}', "latent_channels: expected a number from 1"),
        *(("space", f'{{"name": "model", "constants": {{"patch": {bad}}}}}', "patch") for bad in ("0", "[]", "65")),
        ("space", '{"name": "model", "constants": {"patch": Infinity}}', "Infinity is no number"),
        ("options", '{"size": NaN}', "NaN is no number"),
        ("options", "[" * 100_000, "at most 32 levels"),
        ("geometry", '{"source_width": 4294967296}', "source_width: expected a number from 1"),
        ("geometry", '{"crop": [40, 0, 21, 13]}', "crop .* lies outside of 21x15"),
        ("geometry", '{"pad": [-1, 0, 4, 3]}', "pad: expected a number from 0"),
        ("time_base", '"1/99999999999"', "time_base: expected a fraction"),
        ("rotation", "45", "rotation: expected 0, 90, 180 or 270"),
        ("part", '{"pts": [1000000000000000000000000000000]}', "more than 64 bits"),
        ("part", '{"pts": [9000000000000000000]}', "a time of more than"),
    ],
)
def test_values_out_of_bounds(clip_meta: LatentsMeta, key: str, text: str, reason: str) -> None:
    """Each of them ended a whole run, or hung."""
    strings = to_strings(clip_meta, PartRecord(0, 0, (0,), (1,)))
    try:
        change = json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        change = None
    if isinstance(change, dict) and "Infinity" not in text and "NaN" not in text:
        text = json.dumps({**json.loads(strings[key]), **change})
    with pytest.raises(ValueError, match=reason):
        from_strings({**strings, key: text})


def test_geometry_sizes() -> None:
    assert Geometry(7, 5).size == Geometry(7, 5).padded_size == (7, 5)
    assert Geometry(7, 5, resized=(14, 10)).size == (14, 10)
    geometry = Geometry(7, 5, resized=(14, 10), crop=(1, 2, 11, 8), pad=(0, 1, 5, 7))
    assert (geometry.size, geometry.padded_size) == ((11, 8), (16, 16))


def test_picture_is_what_a_writer_needs(clip_meta: LatentsMeta) -> None:
    spec = clip_meta.picture
    assert (spec.width, spec.height) == (21, 13)
    assert (spec.time_base, spec.frame_rate) == (Fraction(1, 90000), Fraction(30000, 1001))
    assert (spec.sample_aspect_ratio, spec.colour.matrix) == (Fraction(4, 3), "bt709")


def test_fingerprint_follows_what_determines_the_result(image_meta: LatentsMeta) -> None:
    vae = image_meta.vae
    same = [
        replace(image_meta, vae=replace(vae, id="elsewhere/same-weights")),
        replace(image_meta, tool="tvae 9", rotation=0),
        replace(image_meta, options=dict(reversed(image_meta.options.items()))),
    ]
    other = [
        replace(image_meta, source=replace(image_meta.source, name="b.jpg")),
        replace(image_meta, source=replace(image_meta.source, size=1)),
        replace(image_meta, source=replace(image_meta.source, mtime_ns=1)),
        replace(image_meta, vae=replace(vae, weights_sha256="b" * 64)),
        replace(image_meta, vae=replace(vae, config_sha256="b" * 64)),
        replace(image_meta, vae=replace(vae, class_name="AutoencoderTiny")),
        replace(image_meta, space=replace(image_meta.space, name="model")),
        replace(image_meta, posterior=PosteriorRecord("sample", 0)),
        replace(image_meta, posterior=PosteriorRecord("sample", 1)),
        replace(image_meta, dtype="bfloat16"),
        replace(image_meta, options={**image_meta.options, "align": "crop"}),
    ]
    assert {meta.fingerprint for meta in same} == {image_meta.fingerprint}
    assert len({meta.fingerprint for meta in [image_meta, *other]}) == len(other) + 1


def test_source_record_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.jpg"
    file.write_bytes(b"12345")
    record = SourceRecord.of(file)
    assert (record.name, record.size, record.mtime_ns) == ("x.jpg", 5, file.stat().st_mtime_ns)
