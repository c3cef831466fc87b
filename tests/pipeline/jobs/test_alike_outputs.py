"""Results whose names differ in letter case, or in the form of an accent, alone: two files or one, as their file system
says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files import letter_case

Run = Callable[..., Any]

ALIKE = [("a.png", "A.png", True), ("\u00e9.png", "e\u0301.png", False), ("\u00e9.png", "\u00c9.png", True)]
"""Two names, and whether letter case is what tells them apart."""


@pytest.fixture(params=ALIKE, ids=["ascii", "form", "accent"])
def alike(request: pytest.FixtureRequest, picture: Run) -> tuple[list[Path], bool]:
    one, other, cased = request.param
    return [picture(f"in/one/{one}"), picture(f"in/two/{other}", width=40)], cased


@pytest.fixture
def one_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """The file system does not tell one of the two apart."""

    def patch(cased: bool) -> None:
        monkeypatch.setattr(letter_case, "tells_letter_case" if cased else "_tells_forms", lambda _folder: False)

    return patch


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_one_file_for_two_results_is_refused(
    alike: tuple[list[Path], bool], one_file: Callable[[bool], None], operation: str, run: Run, tmp_path: Path
) -> None:
    """The second took the place of the first, and both were told to be done."""
    sources, cased = alike
    one_file(cased)
    with pytest.raises(UsageError, match="would both be written to"):
        run(operation, *sources, output=tmp_path / "out")
    with pytest.raises(UsageError, match="would both be written to"):
        run(operation, str(tmp_path / "in" / "*" / "*.png"), output=tmp_path / "out", naming="{name}")
    done, _ = run(operation, tmp_path / "in", output=tmp_path / "out", recursive=True)
    assert done.done == 2


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
def test_two_files_are_made_where_there_are_two(
    alike: tuple[list[Path], bool], operation: str, run: Run, tmp_path: Path
) -> None:
    sources, cased = alike
    told = letter_case.tells_letter_case if cased else letter_case._tells_forms
    if not told(tmp_path):
        pytest.skip("the file system does not keep them apart")
    done, _ = run(operation, *sources, output=tmp_path / "out")
    assert done.done == 2
    assert len([*(tmp_path / "out").iterdir()]) == 2


def test_names_in_one_folder(picture: Run, one_file: Callable[[bool], None], run: Run, tmp_path: Path) -> None:
    """A folder of a system that keeps them apart, and results on another, such as a card's."""
    picture("in/a.png")
    picture("in/A.png")
    if len([*(tmp_path / "in").iterdir()]) == 1:
        pytest.skip("the file system does not keep them apart")
    one_file(True)
    for operation in ("encode", "roundtrip"):
        with pytest.raises(UsageError, match="would both be written to"):
            run(operation, tmp_path / "in", output=tmp_path / "out")


def test_folders_that_are_one(picture: Run, one_file: Callable[[bool], None], run: Run, tmp_path: Path) -> None:
    picture("in/sub/a.png")
    picture("in/SUB/a.png")
    picture("in/SUB/b.png")
    if len([*(tmp_path / "in").iterdir()]) == 1:
        pytest.skip("the file system does not keep them apart")
    one_file(True)
    with pytest.raises(UsageError, match="would both be written to"):
        run("encode", tmp_path / "in", output=tmp_path / "out", recursive=True)


def test_an_input_under_another_name(picture: Run, one_file: Callable[[bool], None], run: Run, tmp_path: Path) -> None:
    """A picture took the place of the one that it was made of."""
    source = picture("in/A.png")
    before = source.read_bytes()
    one_file(True)
    with pytest.raises(UsageError, match="is an input of this run"):
        run("roundtrip", source, output=tmp_path / "in" / "a.png", existing="overwrite")
    assert source.read_bytes() == before
