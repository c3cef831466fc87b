"""Caches of whole data sets: records in the order of their table, what changes make of them, whose cache stays."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from data_sets import BUCKETS, SIZES, made, picture
from PIL import Image, ImageOps
from stand_in_tables import fingerprint, records, stood_in
from tiny_vaes import relative_l2

from tvae.pipeline.batch.verdicts import verdicts
from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.caches.describe import caches_in
from tvae.pipeline.caches.shards.pickled_index import write_index
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemSkipped, Job, RunDone, RunStarted, run_job

HOME = Path("pictures/cache/flux")
ONE = "resolutions = [64]"
SQUARE = HOME / "cache_1.000x64x64x1" / "latents"


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    stood_in(monkeypatch)
    return saved("flux", Path("vae"))


def run(**fields: Any) -> tuple[RunDone, list[Event]]:
    events: list[Event] = []
    request = CacheRequest("diffusion-pipe", "flux", posterior="mean", shards=fields.pop("shards", None))
    fields = {"vae": "vae", "dtype": "float32", **fields}
    done = run_job(Job("cache", ("dataset.toml",), cache=request, **fields), events.append)
    return done, events


def counts(done: RunDone) -> tuple[int, int, int]:
    return done.done, done.skipped, done.failed


def names(root: Path) -> list[str]:
    return [Path(one["image_spec"][1]).name for one in records(root)]


def test_records_are_those_of_the_trainer(model: Any) -> None:
    made(BUCKETS)
    done, events = run()
    assert counts(done) == (10, 0, 0)
    assert [type(one) for one in (events[0], events[-1])] == [RunStarted, RunDone]
    assert [one.items for one in events if isinstance(one, RunStarted)] == [10]
    assert Counter(getattr(one, "index", None) for one in events).keys() == {None, *range(10)}
    roots = sorted(path.parent for path in HOME.rglob("metadata.db"))
    assert len(roots) == 6
    for root in roots:
        width, height = map(int, root.parent.name.split("x")[1:3])
        for one in records(root):
            assert [*one] == ["latents", "image_spec", "mask", "caption"]
            name = Path(one["image_spec"][1]).name
            assert (one["image_spec"][0], one["mask"], one["caption"]) == (None, None, [f"a caption of {name}"])
            fitted = ImageOps.fit(Image.open(one["image_spec"][1]).convert("RGB"), (width, height))
            mean = reference(model, torch.from_numpy(np.array(fitted)).permute(2, 0, 1).unsqueeze(0))[0]
            assert relative_l2(one["latents"], ((mean - 0.1159) * 0.3611)[0]) < 1e-5


def test_a_changed_caption_moves_records_and_computes_none() -> None:
    made(ONE)
    assert counts(run()[0]) == (5, 0, 0)
    before, first = fingerprint(SQUARE), {one["image_spec"][1]: one["latents"] for one in records(SQUARE)}
    Path("pictures/a.txt").write_text("another")
    told = {one.reason for one in run(dry_run=True)[1] if isinstance(one, ItemSkipped)}
    assert told == {"its latents are there; metadata.db is written again when those of all images are"}
    assert counts(run()[0]) == (0, 5, 0)
    assert fingerprint(SQUARE) != before
    assert all(torch.equal(one["latents"], first[one["image_spec"][1]]) for one in records(SQUARE))
    assert len(records(SQUARE)) == 5


def test_a_run_that_changes_nothing_writes_nothing() -> None:
    made(ONE)
    run()
    index = SQUARE / "metadata.db"
    os.utime(index, (1, 1))
    assert counts(run()[0]) == (0, 5, 0)
    assert index.stat().st_mtime == 1


def test_images_that_come_go_and_change() -> None:
    made(ONE)
    run()
    picture(Path("pictures/new.png"), (70, 66))
    Path("pictures/new.txt").touch()
    Path("pictures/b.png").unlink()
    picture(Path("pictures/a.png"), (64, 64), 9)
    assert counts(run()[0]) == (2, 3, 0)
    assert sorted(names(SQUARE)) == sorted([*SIZES.keys() - {"b.png"}, "new.png"])
    assert {one.state for one in verdicts(HOME, sources=Path("pictures"))} == {"fine"}


def test_what_the_trainer_leaves_out_is_told() -> None:
    made(ONE)
    Path("pictures/b.txt").unlink()
    done, events = run()
    assert counts(done) == (4, 1, 0)
    (told,) = (one for one in events if isinstance(one, ItemSkipped))
    assert (told.input, told.reason) == (Path("pictures/b.png"), "diffusion-pipe leaves it out: it has no caption")


def test_a_table_with_holes_has_no_index() -> None:
    made(ONE)
    whole = Path("pictures/c.png").read_bytes()
    Path("pictures/c.png").write_bytes(whole[:200])
    assert counts(run()[0]) == (4, 0, 1)
    assert not (SQUARE / "metadata.db").exists()
    assert [one.state for one in verdicts(HOME)] == ["fine", "incomplete"]
    Path("pictures/c.png").write_bytes(whole)
    assert counts(run()[0]) == (1, 4, 0)
    assert len(records(SQUARE)) == 5


def test_shards_that_stand_are_kept_after_a_kill() -> None:
    made(ONE)
    stop = 0

    def dies(event: Event) -> None:
        nonlocal stop
        stop += event.type == "item_done"
        if stop == 3:
            raise KeyboardInterrupt

    request = CacheRequest("diffusion-pipe", "flux", posterior="mean", shards="6KB")
    with pytest.raises(KeyboardInterrupt):
        run_job(Job("cache", ("dataset.toml",), cache=request, vae="vae", dtype="float32"), dies)
    assert not (SQUARE / "metadata.db").exists()
    done, _ = run(shards="6KB")
    assert done.skipped > 0
    assert sorted(names(SQUARE)) == sorted(SIZES)
    assert len([*SQUARE.glob("shard_*.bin")]) == 5


def test_a_dry_run_changes_nothing() -> None:
    made(ONE)
    done, _ = run(dry_run=True)
    assert (done.planned, done.done, HOME.exists()) == (5, 0, False)
    run()
    assert counts(run(dry_run=True)[0]) == (0, 5, 0)


def trainers_own(mark: str, records: int) -> None:
    """A cache as diffusion-pipe might have made it, with tvae's note of another."""
    write_index(SQUARE, mark, [(0, n) for n in range(records)], {0: [(n, 1) for n in range(records)]}, "")
    (SQUARE / "shard_0.bin").write_bytes(b"x" * records)
    note = SQUARE / ".tvae-shards" / "table"
    note.write_text(note.read_text().replace('"records": 5', '"records": 4').replace('"checksum": "', '"checksum": "0'))


def test_a_cache_of_the_trainer_stays() -> None:
    made(ONE)
    run()
    mark = fingerprint(SQUARE)
    trainers_own(mark, 5)
    before = {path: path.read_bytes() for path in SQUARE.iterdir() if path.is_file()}
    assert {one.state for one in verdicts(HOME)} == {"stale"}
    done, events = run()
    assert counts(done) == (0, 5, 0)
    assert {one.reason for one in events if isinstance(one, ItemSkipped)} == {"diffusion-pipe has cached it"}
    assert counts(run(dry_run=True)[0]) == (0, 5, 0)
    for changed in ("another", mark):
        trainers_own(changed, 5 if changed == "another" else 3)
        with pytest.raises(UsageError, match=r"metadata\.db is of a cache that diffusion-pipe made"):
            run()
    trainers_own(mark, 5)
    assert {path: path.read_bytes() for path in SQUARE.iterdir() if path.is_file()} == before
    assert counts(run(existing="overwrite")[0]) == (5, 0, 0)
    assert sorted(names(SQUARE)) == sorted(SIZES)


def test_a_cache_that_was_interrupted_is_the_trainers() -> None:
    made(ONE)
    SQUARE.mkdir(parents=True)
    for name in ("shard_0.bin", "metadata.db-journal"):
        (SQUARE / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=r"shard_0\.bin is of a cache"):
        run()
    assert sorted(os.listdir(SQUARE)) == ["metadata.db-journal", "shard_0.bin"]
    assert counts(run(existing="overwrite")[0]) == (5, 0, 0)
    assert not (SQUARE / "metadata.db-journal").exists()


def test_another_vae_is_refused_before_any_work() -> None:
    made("resolutions = [64, 96]")
    run()
    saved("flux", Path("vae")).float()
    request = CacheRequest("diffusion-pipe", "flux", posterior="sample")
    with pytest.raises(UsageError, match="pass --overwrite"):
        run_job(Job("cache", ("dataset.toml",), cache=request, vae="vae", dtype="float32"), lambda _event: None)
    job = Job("cache", ("dataset.toml",), cache=request, vae="vae", dtype="float32", existing="overwrite")
    assert counts(run_job(job, lambda _event: None)) == (10, 0, 0)
    assert {one.state for one in verdicts(HOME)} == {"fine"}
    (row,) = caches_in(SQUARE)
    assert (row["architecture"], row["sources"], row["resolution"]) == ("flux", 5, [64, 64])


def test_the_type_of_the_computation_is_stored() -> None:
    made(ONE)
    run(dtype="bfloat16")
    assert {one["latents"].dtype for one in records(SQUARE)} == {torch.bfloat16}


@pytest.mark.long
def test_frames_of_video_vaes_have_a_dimension_of_their_own() -> None:
    made(ONE)
    saved("wan", Path("wan"))
    request = CacheRequest("diffusion-pipe", "wan")
    run_job(Job("cache", ("dataset.toml",), cache=request, vae="wan", dtype="float32"), lambda _event: None)
    found = records(Path("pictures/cache/wan/cache_1.000x64x64x1/latents"))
    assert {tuple(one["latents"].shape) for one in found} == {(16, 1, 8, 8)}
