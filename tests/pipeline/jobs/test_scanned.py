"""Items of a folder, made as they are asked for: those that the careful way would give, or that way is taken."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from job_files import photo
from means import Means

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, Job, scanned
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.outputs import Claims, Item, assign

SUFFIXES = (".png", ".JPG", ".gif", ".mp4", ".txt", ".safetensors", "", ".webp", ".latents")
NAMES = ("a", "B", "b", "c d", ".e", "f.g", "\N{LATIN SMALL LETTER E WITH ACUTE}", "z")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there it is not done")


def job(tmp_path: Path, folder: str = "in", **fields: object) -> Job:
    return Job("encode", (str(tmp_path / folder),), str(tmp_path / "out"), **fields)  # type: ignore[arg-type]


def tree(folder: Path, rng: random.Random, depth: int = 3) -> None:
    folder.mkdir(parents=True)
    for name in rng.sample(NAMES, rng.randint(2, len(NAMES))):
        path = folder / (name + rng.choice(SUFFIXES))
        if depth and rng.random() < 0.4:
            tree(path, rng, depth - 1)
        else:
            path.touch()


@pytest.mark.parametrize("seed", range(20))
def test_the_same_items(tmp_path: Path, seed: int) -> None:
    tree(tmp_path / "in", random.Random(seed))
    photo(tmp_path / "in/mine/always.png", seed)
    photo(tmp_path / "in/always.png", seed)
    for recursive in (False, True):
        for output in ("out", "in", "in/mine"):
            wanted = Job("encode", (str(tmp_path / "in"),), str(tmp_path / output), recursive=recursive)
            items, careful = scanned.scanned(wanted), assign(expand(wanted), wanted)
            assert items is not None
            assert [*items] == careful
            assert [items[n] for n in range(len(items))] == careful
            assert items[-1] == careful[-1]
            assert items[1:7:2] == careful[1:7:2]
            assert scanned.folders_of(items) == {item.folder for item in careful}
            claims, distinct = Claims(careful), scanned.DistinctOutputs()
            for item in careful:
                for kind in item.kinds:
                    assert distinct.claim(item, kind) == claims.claim(item, kind)


def linked_file(folder: Path) -> None:
    (folder / "in/link.png").symlink_to("a.png")


def linked_folder(folder: Path) -> None:
    (folder / "in/link").symlink_to("sub")


def archive(folder: Path) -> None:
    (folder / "in/b.TAR").touch()


def nothing(folder: Path) -> None:
    (folder / "in/a.png").unlink()
    (folder / "in/sub/c.png").unlink()


def linked_output(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/a.png.safetensors").symlink_to(folder / "in/a.png")


def outputs_of_one_place(folder: Path) -> None:
    (folder / "out/other").mkdir(parents=True)
    (folder / "out/sub").symlink_to("other")
    (folder / "in/other").mkdir()
    (folder / "in/other/c.png").touch()


def no_folder_for_outputs(folder: Path) -> None:
    (folder / "out").touch()


@pytest.mark.parametrize(
    "change",
    [
        linked_file,
        linked_folder,
        archive,
        nothing,
        linked_output,
        outputs_of_one_place,
        no_folder_for_outputs,
    ],
)
def test_what_has_to_be_looked_at(tmp_path: Path, change: object) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    for name in ("a.png", "sub/c.png"):
        (tmp_path / "in" / name).touch()
    assert scanned.scanned(job(tmp_path, recursive=True)) is not None
    change(tmp_path)  # type: ignore[operator]
    assert scanned.scanned(job(tmp_path, recursive=True)) is None


def test_two_outputs_of_one_place_are_refused(tmp_path: Path) -> None:
    for name in ("sub/c.png", "other/c.png"):
        photo(tmp_path / "in" / name, 1)
    (tmp_path / "out/other").mkdir(parents=True)
    (tmp_path / "out/sub").symlink_to("other")
    (tmp_path / "job.toml").write_text('operation = "encode"\ninputs = "in"\nrecursive = true\noutput = "out"\n')
    with pytest.raises(UsageError, match="would both be written"):
        run_batch(read_job_file(tmp_path / "job.toml"), Options(), lambda _event: None)


def test_other_jobs(tmp_path: Path) -> None:
    photo(tmp_path / "in/a.png", 1)
    assert scanned.scanned(job(tmp_path)) is not None
    assert scanned.scanned(job(tmp_path, naming="{stem}")) is None
    assert scanned.scanned(job(tmp_path, folder="in/a.png")) is None
    assert scanned.scanned(job(tmp_path, folder="in/*")) is None
    assert scanned.scanned(Job("roundtrip", (str(tmp_path / "in"),), str(tmp_path / "out"))) is None
    assert scanned.scanned(Job("encode", (str(tmp_path / "in"),) * 2, str(tmp_path / "out"))) is None


def test_the_first_is_done_before_all_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch, whatever is done with all items before it would make each of them."""
    count, made, at_first = 3000, list[int](), list[int]()
    one = photo(tmp_path / "one.png", 0)
    for n in range(count):
        (path := tmp_path / f"in/{n % 7}/{n}.png").parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(one)

    def noted(source: Path, index: int, *rest: object, **named: object) -> Item:
        made.append(index)
        return Item(source, index, *rest, **named)  # type: ignore[arg-type]

    def hear(event: Event) -> None:
        if isinstance(event, ItemDone) and not at_first:
            at_first.append(len(made))

    monkeypatch.setattr(scanned, "Item", noted)
    monkeypatch.setattr("tvae.pipeline.session.model.open_model", lambda *_arguments, **_options: Means())
    job_file = tmp_path / "job.toml"
    job_file.write_text('operation = "encode"\ninputs = "in"\nrecursive = true\noutput = "out"\nthreads = 2\n')
    (result,) = run_batch(read_job_file(job_file), Options(), hear)
    assert result.done == count
    assert at_first[0] < count / 2
