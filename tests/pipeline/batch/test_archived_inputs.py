"""A tar archive among the inputs of a job file: overrides, parts, manifest, and what a second run does."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import ENCODE, NAME, checksums

from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.jobs import Job, overlap
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.outputs import assign
from tvae.pipeline.latents import open_latents

Batch = Callable[..., Any]


def packed(photos: Path, archive: Path) -> dict[str, int]:
    """Moves them into an archive; the size of each, by name."""
    files = sorted(path for path in photos.rglob("*.png"))
    with tarfile.open(archive, "w") as opened:
        for path in files:
            opened.add(path, path.relative_to(photos).as_posix())
    sizes = {path.relative_to(photos).as_posix(): path.stat().st_size for path in files}
    for path in files:
        path.unlink()
    return sizes


def test_a_line_for_each_member(batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = packed(photos, photos / "a.tar")
    override = '[[step.override]]\nmatch = "a/3.png"\nsize = "16x16"\n'
    (result,), _, _ = batch(ENCODE + override)
    assert (result.done, result.failed, result.read_bytes) == (9, 0, sum(sizes.values()))
    lines = read_manifest(tmp_path / "out" / NAME)
    assert {name: line["sha256"] for name, line in lines.items()} == checksums(tmp_path / "out")
    assert {line["source"]: line["source_bytes"] for line in lines.values()} == {
        str(photos / "a.tar" / name): size for name, size in sizes.items()
    }
    assert open_latents(tmp_path / "out/a/3.png.safetensors").meta.geometry.resized == (16, 8)
    with monkeypatch.context() as patched:
        patched.setattr(overlap, "looked_up", None)
        (result,), _, _ = batch(ENCODE + override)
    assert (result.done, result.skipped, result.failed) == (0, 9, 0)
    (result,), _, _ = batch(ENCODE + override, dry_run=True)
    assert (result.planned, result.skipped) == (0, 9)


def test_members_are_claimed_and_sent_to_other_processes(batch: Batch, photos: Path, tmp_path: Path) -> None:
    packed(photos, photos / "a.tar")
    (result,), _, _ = batch(ENCODE, claim=True)
    assert (result.done, result.failed) == (9, 0)
    items = assign(expand(Job("encode", (str(photos),), output=str(tmp_path / "out"))), Job("encode", (str(photos),)))
    assert pickle.loads(pickle.dumps(items)) == items


def test_parts_share_the_members(batch: Batch, photos: Path, tmp_path: Path) -> None:
    packed(photos, photos / "a.tar")
    counts = [batch(ENCODE, shard=Shard(number, 3))[0][0].done for number in (1, 2, 3)]
    assert sum(counts) == 9
    assert max(counts) < 9
    assert len(checksums(tmp_path / "out")) == 9
