"""A file that is put in a result's place while that is computed: what would have been left alone before is now, too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.jobs import Event, ItemFailed, ItemStarted, Job, run_job

Run = Callable[..., Any]


@pytest.fixture(params=["a.png", "c.mkv"])
def source(request: pytest.FixtureRequest, picture: Run, clip: Run) -> Path:
    return picture(request.param) if request.param.endswith(".png") else clip(request.param)


@pytest.fixture(params=["decode", "roundtrip"])
def disturbed(request: pytest.FixtureRequest, source: Path, run: Run, stand_in: Run, tmp_path: Path) -> Run:
    """Puts a file in the place of the result when its item has begun; how the run ended, its errors, and the result."""
    given = source
    if request.param == "decode":
        run("encode", source, output=tmp_path / "latents")
        (given,) = (tmp_path / "latents").iterdir()

    def disturbed(theirs: Path, **fields: Any) -> tuple[Any, list[str], Path]:
        outputs, errors = list[Path](), list[str]()

        def on_event(event: Event) -> None:
            if isinstance(event, ItemStarted):
                outputs.append(event.output)
                shutil.copy(theirs, event.output)
            if isinstance(event, ItemFailed):
                errors.append(event.error)

        job = Job(request.param, (str(given),), output=str(tmp_path / "out"), **fields)
        (tmp_path / "out").mkdir(exist_ok=True)
        return run_job(job, on_event, model=stand_in()), errors, outputs[0]

    return disturbed


@pytest.mark.parametrize("existing", ["skip", "keep"])
def test_a_users_file_stays(disturbed: Run, source: Path, existing: str, tmp_path: Path) -> None:
    """The result took its place, and the file was lost."""
    theirs = source.with_name(f"theirs{source.suffix}")
    theirs.write_bytes(b"theirs")
    done, errors, output = disturbed(theirs, existing=existing)
    assert done.failed == 1
    assert errors == [
        f"cannot write {output}: a file was put there while this was computed; move it away, or pass --overwrite"
    ]
    assert output.read_bytes() == b"theirs"
    assert [*output.parent.iterdir()] == [output] or output.suffix == ".mp4"  # of a clip, parts are kept
    output.unlink()
    done, _, output = disturbed(theirs, existing="overwrite")
    assert done.done == 1
    assert output.read_bytes() != b"theirs"


def test_another_runs_result(disturbed: Run, source: Path, run: Run, tmp_path: Path) -> None:
    """With other options it is outdated, which *keep* alone keeps; the same one is as good as this."""
    run("roundtrip", source, output=tmp_path / "else", size=(16, 16))
    (theirs,) = (tmp_path / "else").iterdir()
    done, _, output = disturbed(theirs)
    assert done.done == 1
    same = output.rename(tmp_path / f"same{output.suffix}")
    assert same.read_bytes() != theirs.read_bytes()
    done, errors, output = disturbed(theirs, existing="keep")
    assert done.failed == 1
    assert "was put there" in errors[0]
    assert output.read_bytes() == theirs.read_bytes()
    output.unlink()
    assert disturbed(same, existing="keep")[0].done == 1
