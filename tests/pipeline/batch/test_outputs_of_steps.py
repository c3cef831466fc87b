"""Steps of one job that would write the same file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import ENCODE, checksums, photo

from tvae.pipeline.batch.outputs_of_steps import OutputsOfSteps
from tvae.pipeline.errors import UsageError

Batch = Callable[..., Any]


def step(inputs: str, output: str, operation: str = "encode", more: str = "") -> str:
    return f'[[step]]\noperation = "{operation}"\ninputs = "{inputs}"\noutput = "{output}"\n{more}'


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for number, name in enumerate(("a/1.png", "b/1.png", "b/2.png", "out/c/3.png")):
        photo(tmp_path / name, number)
    return tmp_path


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("second", ["out", "./out/", "link", "all/../out"])
def test_the_same_output_of_two_steps(second: str, dry_run: bool, batch: Batch, folders: Path) -> None:
    (folders / "out" / "c" / "3.png").unlink()
    (folders / "all").mkdir()
    os.symlink(folders / "out", folders / "link")
    with pytest.raises(UsageError, match=r"out.1\.png\.safetensors is written by two steps .* from .*b.1\.png"):
        batch(step("a", "out") + step("b", second), dry_run=dry_run)
    assert checksums(folders / "out") == {}, "no step is begun"


def test_an_output_that_is_known_when_an_earlier_step_is_done(batch: Batch, folders: Path) -> None:
    """The third step's inputs are the second one's outputs, which are there in the second run."""
    job = step("a", "new/back", "roundtrip") + step("b", "latents") + step("latents", "new/back", "decode")
    with pytest.raises(UsageError, match=r"new/back/1\.png is written by two steps"):
        batch(job)
    assert checksums(folders / "latents").keys() == {"1.png.safetensors", "2.png.safetensors"}
    shutil.rmtree(folders / "new")
    with pytest.raises(UsageError, match=r"new/back/1\.png is written by two steps"):
        batch(job)
    assert not (folders / "new").exists()


def test_the_same_input_with_other_options(batch: Batch, folders: Path) -> None:
    with pytest.raises(UsageError, match="give one of the steps another output"):
        batch(step("b", "new", more='posterior = "mean"\n') + step("b", "new", more='posterior = "sample"\n'))


def test_a_folder_in_another_steps_folder(batch: Batch, folders: Path) -> None:
    photo(folders / "whole" / "c" / "1.png", 7)
    with pytest.raises(UsageError, match="written by two steps"):
        batch(step("whole", "new", more="recursive = true\n") + step("a", "new/c"))


def test_other_names_in_one_folder(batch: Batch, folders: Path) -> None:
    (folders / "b" / "1.png").unlink()
    first, second = batch(step("a", "new") + step("b", "new"))[0]
    assert (first.done, second.done) == (1, 1)
    assert checksums(folders / "new").keys() == {"1.png.safetensors", "2.png.safetensors"}
    again = batch(step("a", "new") + step("b", "new"))[0]
    assert [result.skipped for result in again] == [1, 1]


def test_a_step_that_reads_what_another_has_written(batch: Batch, folders: Path) -> None:
    done = batch(step("b", "new") + step("new", "new", "decode") + step("b", "other", "roundtrip"))[0]
    assert [result.done for result in done] == [2, 2, 2]


def test_a_step_alone_asks_nothing(batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputsOfSteps, "_paths", None)
    assert batch(ENCODE)[0][0].done == 9
