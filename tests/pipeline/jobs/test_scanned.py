"""Items of a folder, made as they are asked for: those that the careful way would give, or that way is taken."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from job_files import photo
from means import Means

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, Job, scanned
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Listed
from tvae.pipeline.jobs.listing import listing
from tvae.pipeline.jobs.outputs import Claims, Item, assign
from tvae.pipeline.jobs.vaes import Vaes

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


def named(folder: Path, seed: int) -> Job:
    """A few files and patterns, and a list of files and one pattern, in any order; of names that differ."""
    rng = random.Random(seed)
    names = [f"{n}{rng.choice(('.png', '.JPG', '.gif', '.mp4', '.webp'))}" for n in range(10, 150)]
    rng.shuffle(names)
    paths = [Path(rng.choice(("a", "a/b", "c")), name) for name in names]
    for path in (*paths, Path("p/1.png"), Path("p/q/2.png"), Path("p/q/1.png"), Path("r/1.png"), Path("r/s/3.mp4")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    (folder / "p/q/no.txt").touch()
    lines = [f"{folder}/{rng.choice(('', './', 'a/../'))}{path}" for path in paths[5:]]
    lines.insert(rng.randrange(100), f"{folder}/?/[s]/3.*")
    inputs = (str(folder / paths[0]), f"{folder}/p/**/*.png", *(str(folder / path) for path in paths[1:5]))
    return Job("encode", inputs, str(folder / "out"), listed=tuple(map(Listed, lines)))


@pytest.mark.parametrize("seed", range(6))
def test_the_same_items_of_lists_and_patterns(tmp_path: Path, seed: int) -> None:
    wanted = named(tmp_path, seed)
    items, careful = scanned.scanned(wanted), assign(expand(wanted), wanted)
    assert items is not None
    assert len(careful) == 144
    assert [*items] == careful
    assert [items[n] for n in range(len(items))] == careful
    assert scanned.folders_of(items) == {item.folder for item in careful}
    claims, distinct = Claims(careful), scanned.DistinctOutputs()
    assert all(distinct.claim(item, kind) == claims.claim(item, kind) for item in careful for kind in item.kinds)


@pytest.mark.parametrize(
    "line",
    [
        *("in/a.png", "in/sub/a.png", "in/gone.png", "in/link.png", "in/sub", "in/b.tar", "in/x.tar/c.png"),
        *("in/none*.png", "in/s*", "in/*.txt", "in/**/a.png", "https://localhost/a.png", "in/c.png/", "in/sub/."),
        *("in/notes.txt", "in/a.png/", "in/./."),
    ],
)
@pytest.mark.parametrize("others", [2, 50])
def test_lists_that_have_to_be_looked_at(tmp_path: Path, line: str, others: int) -> None:
    """Of few files of a folder each is asked for, of many the folder is."""
    names = ["in/a.png", "in/b.png", "in/c.png", "in/sub/a.png", "in/notes.txt", "in/b.tar"]
    for name in (*names, *(f"in/more/{n}.png" for n in range(others))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "in/link.png").symlink_to("more/1.png")
    lines = ["in/a.png", "in/b.png", *(f"in/more/{n}.png" for n in range(others))]
    whole = [one if "://" in one else f"{tmp_path}/{one}" for one in (*lines, line)]
    out = str(tmp_path / "out")
    assert scanned.scanned(Job("encode", (), out, listed=tuple(map(Listed, whole[:-1])))) is not None
    assert scanned.scanned(Job("encode", (), out, listed=tuple(map(Listed, whole)))) is None
    assert scanned.scanned(Job("encode", tuple(whole), out)) is None


def test_options_of_their_own_are_looked_at(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).touch()
    one, other = (Listed(str(tmp_path / name)) for name in ("a.png", "b.png"))
    assert scanned.scanned(Job("encode", (), str(tmp_path / "out"), listed=(one, other))) is not None
    assert scanned.scanned(Job("encode", (), str(tmp_path / "out"), listed=(one, Listed(other.name, 0)))) is None
    assert scanned.scanned(Job("encode", (one.name,), str(tmp_path / "a.safetensors"))) is None, "which names a file"


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


@pytest.mark.long
@pytest.mark.parametrize("inputs", ['inputs = "in"\nrecursive = true', 'inputs = "in/*/*.png"', 'list = "list.txt"'])
def test_the_first_is_done_before_all_are_looked_at(
    inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch, whatever is done with all items before it would make each of them."""
    count, made, at_first = 1200, list[int](), list[int]()
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
    job_file.write_text(f'operation = "encode"\n{inputs}\noutput = "out"\nthreads = 2\n')
    (tmp_path / "list.txt").write_text("\n".join(f"in/{n % 7}/{n}.png" for n in range(count)))
    (result,) = run_batch(read_job_file(job_file), Options(), hear)
    assert result.done == count
    assert at_first[0] < count / 2


@pytest.mark.parametrize("output", ["one.latents", "one.safetensors", "one.mp4", "one.latents/", "one"])
@pytest.mark.parametrize("files", [("a.png",), ("c.mp4",), ("a.png", "c.mp4")], ids=len)
def test_an_output_that_may_be_a_files_name(tmp_path: Path, files: tuple[str, ...], output: str) -> None:
    """A folder with one clip goes where the clip itself would."""
    (tmp_path / "in").mkdir()
    for file in files:
        (tmp_path / "in" / file).touch()
    wanted = Job("encode", (str(tmp_path / "in"),), f"{tmp_path / output}{'/' * output.endswith('/')}")

    def ends(find: Callable[[], Sequence[Item]]) -> object:
        try:
            return [(item.name, item.exact, item.folder) for item in find()]
        except UsageError as error:
            return str(error)

    def careful() -> Sequence[Item]:
        items = assign(expand(wanted), wanted)
        Claims(items)
        return items

    assert ends(lambda: listing(wanted, Vaes(wanted)).items) == ends(careful)
    if (files, output) == (("c.mp4",), "one.latents"):
        assert ends(lambda: listing(wanted, Vaes(wanted)).items) == [("one.latents", True, tmp_path)]
