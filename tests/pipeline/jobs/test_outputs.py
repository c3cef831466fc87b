"""Names of outputs, and what is refused before any work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from program import invoke

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import ItemFailed, ItemStarted, Job
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.outputs import Claims, Item, assign


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jpg", "a.png", "a.JPG.png", "v.mp4", "v.avi", "odd.bin", "sub/a.jpg", "other/a.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)


def items(operation: Any, *inputs: str, **fields: Any) -> list[Item]:
    job = Job(operation, inputs, **fields)
    planned = assign(expand(job), job)
    Claims(planned)
    return planned


def outputs(operation: Any, *inputs: str, **fields: Any) -> list[str]:
    return [item.output(min(item.kinds)).as_posix() for item in items(operation, *inputs, **fields)]


def test_latents_keep_the_whole_name() -> None:
    assert outputs("encode", "a.jpg", "a.png", "v.mp4", output="out") == [
        "out/a.jpg.safetensors",
        "out/a.png.safetensors",
        "out/v.mp4.latents",
    ]
    assert outputs("encode", "a.jpg") == ["a.jpg.safetensors"]


def test_reconstructions_add_a_suffix_unless_it_is_there() -> None:
    assert outputs("roundtrip", "a.jpg", "a.png", "v.mp4", "v.avi", output="out") == [
        "out/a.jpg.png",
        "out/a.png",
        "out/v.mp4",
        "out/v.avi.mp4",
    ]


def test_the_tree_is_mirrored() -> None:
    assert outputs("encode", "sub", output="out") == ["out/a.jpg.safetensors"]
    assert "out/sub/a.jpg.safetensors" in outputs("encode", ".", output="out", recursive=True)


@pytest.mark.parametrize("pattern", ["s*/../../x.png", "s*/../s*/../../*.png", "*/../../../tree/x.png", "s*/../.."])
@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
@pytest.mark.parametrize("way", ["named", "-a", "list"])
def test_no_pattern_leads_out_of_the_output_folder(
    way: str, operation: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x.png", "deep/s1/y.png"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64)).save(tmp_path / "tree" / name)
    monkeypatch.chdir(tmp_path / "tree" / "deep")
    Path("names.txt").write_text(f"{pattern}\n")
    words = [operation, "-o", "out/deep", "--vae", "builtin"]
    if way == "list":
        text = invoke([*words, pattern, "--print-config"]).stdout
        Path("job.toml").write_text(re.sub("^inputs = .*$", 'list = "names.txt"', text, flags=re.MULTILINE))
        result = invoke(["batch", "job.toml", "-n", "--json"])
    else:
        result = invoke([*words, *([pattern] if way == "named" else ["-a", "names.txt"]), "-n", "--json"])
    events = [json.loads(line) for line in result.stdout.splitlines()]
    (planned,) = [event["output"] for event in events if event["type"] == "item_planned"]
    assert Path("out/deep").resolve() in Path(planned).resolve().parents


@pytest.mark.parametrize("naming", ["{stem}/{name}", "{folder}/{stem}/{stem}/x{name}"])
def test_no_stem_leads_out_of_the_output_folder(naming: str) -> None:
    Path("...png").touch()
    odd, other = items("encode", "...png", "a.jpg", output="out", naming=naming)
    assert "leads out of the output folder" in (odd.problem or "")
    assert odd.folder == Path("out")
    assert other.problem is None


def test_one_input_may_name_its_file() -> None:
    assert outputs("roundtrip", "a.jpg", output="x/b.webp") == ["x/b.webp"]
    assert outputs("encode", "a.jpg", output="b.safetensors") == ["b.safetensors"]
    assert outputs("encode", "v.mp4", output="w.latents") == ["w.latents"]
    assert outputs("roundtrip", "sub", output="b.webp") == ["b.webp"], "the only one in a folder"
    assert outputs("roundtrip", "a.jpg", "v.mp4", output="b.webp/") == ["b.webp/a.jpg.png", "b.webp/v.mp4"]
    with pytest.raises(UsageError, match=r"-o b\.webp names one result, and there are 2 inputs; name a folder"):
        outputs("roundtrip", "a.jpg", "v.mp4", output="b.webp")
    both = ["b.latents/a.jpg.safetensors", "b.latents/v.mp4.latents"]
    assert outputs("encode", "a.jpg", "v.mp4", output="b.latents/") == both
    with pytest.raises(UsageError, match=r"-o b\.latents names one result"):
        outputs("encode", "a.jpg", "v.mp4", output="b.latents")
    Path("b.latents").mkdir()
    assert outputs("encode", "a.jpg", "v.mp4", output="b.latents/") == both
    Path("b.latents", "000000.safetensors").touch()
    for name in ("b.latents", "b.latents/"):
        with pytest.raises(UsageError, match="names one result"):  # results would lie in a clip's folder
            outputs("encode", "a.jpg", "v.mp4", output=name)
    Path("b.webp").mkdir()
    assert outputs("roundtrip", "a.jpg", "v.mp4", output="b.webp") == ["b.webp/a.jpg.png", "b.webp/v.mp4"]


def test_what_a_file_is_shows_when_it_is_opened() -> None:
    (item,) = items("roundtrip", "odd.bin", output="out")
    assert {item.output(kind).name for kind in item.kinds} == {"odd.bin.png", "odd.bin.mp4"}
    (item,) = items("roundtrip", "odd.bin", output="x.mp4")
    with pytest.raises(InputError, match="cannot be written to x"):
        item.output("image")


@pytest.mark.parametrize(
    ("operation", "inputs", "output", "reason"),
    [
        ("roundtrip", ["a.png"], None, "is an input"),
        ("roundtrip", ["a.png"], "a.png", "is an input"),
        ("roundtrip", ["v.avi", "v.mp4"], ".", "is an input"),
        ("encode", ["sub/a.jpg", "other/a.jpg"], "out", "would both be written"),
        ("encode", ["sub/a.jpg", "other/a.jpg"], "out", r"in a run of its own, with another output \(-o\)"),
        ("encode", ["a.jpg"], "b.png", "cannot write b.png"),
        ("encode", ["v.mp4"], "b.safetensors", "cannot be written to"),
        ("encode", ["a.jpg"], "b.latents", "cannot be written to"),
        ("roundtrip", ["a.jpg"], "b.mp4", "cannot be written to"),
        ("roundtrip", ["a.jpg"], "b.gif", "cannot write b.gif"),
        ("encode", ["a.jpg"], "v.mp4/out", "cannot write to"),
    ],
)
def test_refused_before_any_work(operation: str, inputs: list[str], output: str | None, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        items(operation, *inputs, output=output)


def test_checking_leaves_no_trace(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    items("encode", "a.jpg", output="new/folder")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("named", [False, True])
def test_names_too_long_for_their_results(named: bool, run: Callable[..., Any], picture: Any, tmp_path: Path) -> None:
    """They fail before anything is computed, and the others do not."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("x" * 251, "x" * 239, "a"):
        picture().rename(folder / f"{name}.png")
    given = sorted(folder.iterdir()) if named else [folder]
    for again in (False, True):
        done, events = run("encode", *given, output=tmp_path / "out")
        assert (done.done + done.skipped, done.failed) == (2, 1)
        assert again == bool(done.skipped)
        (failed,) = [event for event in events if isinstance(event, ItemFailed)]
        assert "more than 255 bytes; name one with -o FILE" in failed.error
        assert not [event for event in events if isinstance(event, ItemStarted) and event.input == failed.input]
    done, _ = run("encode", folder / f"{'x' * 251}.png", output=tmp_path / "short.safetensors")
    assert done.done == 1
