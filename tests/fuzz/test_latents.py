"""Damaged latents: each costs its own item, with one line, and no other."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from mutations import damaged_bytes, mutated, read_tensor_file, text_of, write_tensor_file
from stand_in import StandIn

from tvae.pipeline.errors import InputError, OutputError, PlanError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Job, run_job

REFUSALS = (InputError, OutputError, UsageError, PlanError)
SEEDS = [pytest.param(range(60), id="short"), pytest.param(range(1000, 2500), id="long", marks=pytest.mark.slow)]
Cases = range


def decode(folder: Path, good: Path, out: Path, model: Any) -> None:
    """Decodes all that is in a folder, and a good item: it is done, and no other ends by a mistake of tvae's."""
    events: list[Event] = []
    job = Job("decode", (str(folder), str(good)), output=str(out), existing="overwrite")
    run_job(job, events.append, model=model)
    faults = [
        (event.input.name, repr(event.cause))
        for event in events
        if isinstance(event, ItemFailed) and not isinstance(event.cause, REFUSALS)
    ]
    assert faults == []
    done = [event.input for event in events if isinstance(event, ItemDone)]
    assert good in done


@pytest.mark.parametrize("seeds", SEEDS)
def test_headers_of_images(seeds: Cases, made: tuple[Path, Path], tmp_path: Path) -> None:
    header, values = read_tensor_file(made[0])
    (bad := tmp_path / "bad").mkdir()
    for seed in seeds:
        rng = random.Random(seed)
        if rng.random() < 0.2:
            (bad / f"{seed}.safetensors").write_bytes(damaged_bytes(made[0].read_bytes()[:-64], rng))
        else:
            write_tensor_file(bad / f"{seed}.safetensors", mutated(header, rng), values)
    decode(bad, made[0], tmp_path / "out", StandIn())


@pytest.mark.long
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("what", ["index.json", "000000.safetensors", "streams"])
def test_folders_of_clips(what: str, seeds: Cases, made: tuple[Path, Path], tmp_path: Path) -> None:
    (bad := tmp_path / "bad").mkdir()
    for seed in seeds if what == "index.json" else seeds[::2]:
        rng, folder = random.Random(seed), bad / f"{seed}.latents"
        shutil.copytree(made[1], folder)
        index = json.loads((folder / "index.json").read_text())
        if what == "index.json":
            record = rng.random() < 0.5
            if record:
                index["streams"]["record"] = mutated(index["streams"]["record"], rng)
            (folder / what).write_bytes(text_of(index if record else mutated(index, rng)))
            continue
        if what == "streams":
            (path,) = folder.glob("streams.*")
            path.write_bytes(damaged_bytes(path.read_bytes(), rng))
        else:
            path = folder / what
            header, values = read_tensor_file(path)
            write_tensor_file(path, mutated(header, rng), values)
        for entry in (*index["parts"], *index["streams"]["files"]):
            if entry["file"] == path.name:
                entry["bytes"] = path.stat().st_size
        (folder / "index.json").write_bytes(text_of(index))
    decode(bad, made[0], tmp_path / "out", StandIn())
