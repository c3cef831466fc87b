"""Outputs whose names a template gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from job_files import DECODE, ENCODE, NAME, checksums, photo

from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job

Batch = Callable[..., Any]


def names(folder: Path) -> set[str]:
    return {*checksums(folder)}


def test_stems_and_folders(batch: Batch, photos: Path, tmp_path: Path) -> None:
    text = ENCODE + 'naming = "lat/{folder}/l-{stem}"\n' + DECODE + 'naming = "all-{stem}"\n'
    results, _, _ = batch(text)
    assert [(result.done, result.failed) for result in results] == [(9, 0), (9, 0)]
    made = {f"lat/l-{n}.safetensors" for n in range(6)} | {f"lat/sub/l-{n}.safetensors" for n in (6, 7, 8)}
    assert names(tmp_path / "out") == made == read_manifest(tmp_path / "out" / NAME).keys()
    assert names(tmp_path / "back") == {f"all-{n}.png" for n in range(9)}
    results, _, _ = batch(text)
    assert [(result.done, result.skipped) for result in results] == [(0, 9), (0, 9)]


def test_hashes_are_of_folder_and_name(batch: Batch, photos: Path, tmp_path: Path) -> None:
    photo(photos / "sub" / "0.png", 0)
    batch(ENCODE + 'naming = "{hash}"\n[[step.override]]\nmatch = "sub/*"\nsize = "16x8"\n')
    places = [f"./{n}.png" for n in range(6)] + [f"sub/{n}.png" for n in (0, 6, 7, 8)]
    assert names(tmp_path / "out") == {hashlib.sha256(p.encode()).hexdigest()[:16] + ".safetensors" for p in places}


def test_a_picture_and_a_clip(batch: Batch, tmp_path: Path) -> None:
    photo(tmp_path / "in" / "a.png", 1)
    write_clip(tmp_path / "in" / "b.mp4", 4, sound=False)
    batch(ENCODE + 'naming = "x/{stem}"\n' + DECODE)
    assert sorted(path.name for path in (tmp_path / "out" / "x").iterdir()) == ["a.safetensors", "b.latents"]


def test_two_of_one_name(batch: Batch, photos: Path, tmp_path: Path) -> None:
    photo(photos / "0.jpg", 1)
    with pytest.raises(UsageError, match="would both be written to"):
        batch(ENCODE + 'naming = "{stem}"\n')
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{stam}", "did you mean {stem}"),
        ("{folder}", "one name"),
        ("x", "one name"),
        ("{name", "brace"),
        ("{{name}}", "brace"),
        ("../{name}", "leads out"),
        ("/{name}", "leads out"),
        ("a/../../{name}", "leads out"),
        ("c:{name}", "leads out"),
        ("a\\{name}", "leads out"),
        ("{name}/", "ends in a folder"),
    ],
)
def test_refused(template: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Job("encode", ("x",), naming=template)
