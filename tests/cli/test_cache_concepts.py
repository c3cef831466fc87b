"""``tvae cache --for onetrainer``, and what other commands make of such a cache."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from cache_vaes import saved
from concepts import XL, concept, files_in, photo, written
from program import invoke


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(saved("sdxl", tmp_path_factory.mktemp("sdxl")).folder)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder such as OneTrainer's: its files name others from it on."""
    monkeypatch.chdir(tmp_path)
    for n, name in enumerate(("a", "sub/b")):
        photo(Path(f"photos/{name}.png"), seed=n)
    written(Path("training_concepts/concepts.json"), [concept("photos", include_subdirectories=True)])


def call(*words: object) -> tuple[int, str, str]:
    done = invoke([*map(str, words)])
    return done.exit_code, done.stdout, done.stderr


CONCEPTS = ("cache", "--for", "onetrainer", "--concepts", "training_concepts/concepts.json")
SET = (*CONCEPTS, "--arch", XL, "--size", "128x128", "-o", "run")


def test_a_cache_of_a_file(vae: Path) -> None:
    code, told, lines = call(*SET, "--vae", vae, "--json")
    events = [json.loads(line) for line in told.splitlines()]
    assert code == 0
    assert {event["input"] for event in events if event["type"] == "item_done"} == {
        os.path.join("photos", "a.png"),
        os.path.join("photos", "sub", "b.png"),
    }
    assert [row["image_path"] for row in [*files_in(Path("run")).values()][-1]] == [
        os.path.join("photos", "a.png"),
        os.path.join("photos", "sub", "b.png"),
    ]
    assert "warning" not in lines
    code, told, lines = call(*SET, "--vae", vae)
    assert (code, "2 skipped" in lines) == (0, True)


def test_what_to_set_in_the_trainer_is_told(vae: Path) -> None:
    assert "clear cache before training off" in " ".join(call(*SET, "--vae", vae)[2].split())


def test_what_a_failed_image_means_for_the_trainer_is_told(vae: Path) -> None:
    Path("photos/a.png").write_bytes(b"")
    code, _, lines = call(*SET, "--vae", vae)
    assert code == 3
    assert "folders of concepts where an image has failed do not count as complete" in " ".join(lines.split())
    assert "clear cache before training" in " ".join(lines.split())
    Path("photos/sub/b.png").write_bytes(b"")
    assert "do not count as complete" in " ".join(call(*SET, "--vae", vae)[2].split())


def test_a_configuration_with_its_concepts(vae: Path) -> None:
    config = {"model_type": XL, "resolution": "128", "train_dtype": "BFLOAT_16", "concepts": [concept("photos")]}
    written(Path("config.json"), config)
    assert call("cache", "--for", "onetrainer", "--config", "config.json", "--vae", vae, "-o", "run")[0] == 0
    (entry, _) = files_in(Path("run")).values()
    assert entry["latent_image"].dtype == torch.bfloat16


def test_verified(vae: Path) -> None:
    call(*SET, "--vae", vae)
    assert call("verify", "run", "--source", "photos")[:2] == (0, "2 fine\n")
    photo(Path("photos/sub/b.png"), seed=7)
    code, told, _ = call("verify", "run", "--source", "photos")
    assert (code, "its source photos" in told, "1 fine, 1 stale" in told) == (0, True, True)
    (whole,) = Path("run").glob("image/*/*/aggregate.pt")
    whole.write_bytes(whole.read_bytes()[:-1] + b"x")
    code, told, _ = call("verify", "run")
    assert (code, f"{whole}: damaged" in told) == (4, True)
    whole.unlink()
    assert call("verify", "run")[0] != 0


def test_a_folder_that_is_not_complete_is_not_fine(vae: Path) -> None:
    good = Path("photos/a.png").read_bytes()
    for n, content in enumerate((b"", good)):
        Path("photos/a.png").write_bytes(content)
        assert call(*SET, "--vae", vae)[0] == (3, 0)[n]
        code, told, _ = call("verify", "run")
        assert (code, "aggregate.pt: incomplete" in told) == ((4, True), (0, False))[n]
    Path("photos/a.png").write_bytes(b"")
    assert call(*SET, "--vae", vae)[0] == 3
    assert call("verify", "run")[1].count("aggregate.pt") == 1


def test_inspected(vae: Path) -> None:
    call(*SET, "--vae", vae)
    (row,) = json.loads(call("inspect", "run", "--json")[1])["caches"]
    assert (row["trainer"], row["architecture"], row["resolution"]) == ("onetrainer", XL, [128, 128])
    assert (row["sources"], row["files"]) == (2, 3)
    assert row["bytes"] == sum(path.stat().st_size for path in Path("run").rglob("*.pt"))


def test_a_dry_run(vae: Path) -> None:
    code, told, _ = call(*SET, "--vae", vae, "-n", "--json")
    kinds = [json.loads(line)["type"] for line in told.splitlines()]
    assert (code, kinds) == (0, ["run_started", "item_planned", "item_planned", "run_done"])
    assert not Path("run").exists()


def test_a_job_file_of_the_command(vae: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told, _ = call(*SET, "--vae", vae, "--print-config")
    (step,) = tomllib.loads(told)["step"]
    assert (code, step["cache"]["concepts"]) == (0, str(tmp_path / "training_concepts" / "concepts.json"))
    Path("job.toml").write_text(told, encoding="utf-8")
    assert call("batch", "job.toml")[0] == 0
    assert len(files_in(Path("run"))) == 3
    assert call("batch", "job.toml")[0] == 0
    relative = told.replace(json.dumps(step["cache"]["concepts"]), '"../training_concepts/concepts.json"')
    Path("jobs").mkdir()
    Path("jobs/job.toml").write_text(relative, encoding="utf-8")
    assert call("batch", "jobs/job.toml")[0] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cache", "--for", "onetrainer", "-o", "run"), "name their file with --concepts"),
        ((*SET, "photos"), "onetrainer's images are those of its concepts; leave the inputs out"),
        ((*SET, "--flip"), "onetrainer keeps no mirrored images in its cache; leave --flip out"),
        ((*SET, "--alpha-mask"), "keeps no alpha"),
        ((*SET, "--no-upscale"), "onetrainer enlarges all small images"),
        ((*SET, "--frames", "5"), "caches images alone"),
        ((*SET, "--shards", "1MB"), "and no shards"),
        ((*SET, "--buckets", "64-128"), "has no range of buckets to set"),
        ((*CONCEPTS, "--arch", XL, "--size", "128x192"), "the resolution of onetrainer is one number"),
        (("cache", "--for", "kohya", "photos", "--concepts", "x", "-o", "run"), "kohya has no file of concepts"),
        (("convert", "photos", "run", "--for", "onetrainer"), "tvae cache --for onetrainer writes it"),
        (("convert", "photos", "run", "--from", "onetrainer", "--vae", "x"), "tvae cache --for onetrainer writes it"),
        (("cache", "--for", "onetrainer", "--concepts", "gone.json", "-o", "run"), "cannot read gone.json"),
    ],
)
def test_refused_before_any_work(vae: Path, words: tuple[str, ...], told: str) -> None:
    given: Any = (*words, "--vae", vae) if words[0] == "cache" else words
    code, _, lines = call(*given)
    assert (code, told in " ".join(lines.split())) == (2, True), lines
    assert not Path("run").exists()
