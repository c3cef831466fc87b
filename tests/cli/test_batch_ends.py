"""How a batch ends that does not come to its end: what its report says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tvae.cli.exit_codes import Terminated
from tvae.cli.render import Display
from tvae.pipeline.jobs import Event, ItemDone

Tvae = Callable[..., Result]
JOB = 'device = "cpu"\n[[step]]\noperation = "encode"\ninputs = ["photo.png", "bad.png"]\noutput = "out"\n'
MORE = '[[step]]\noperation = "decode"\ninputs = "out"\noutput = "back"\n'


@pytest.fixture
def job(photo: Path) -> Path:
    (photo.parent / "bad.png").write_bytes(b"nothing")
    path = photo.parent / "job.toml"
    path.write_text(JOB + MORE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("error", "code", "ended"),
    [(KeyboardInterrupt(), 130, "interrupted"), (Terminated(), 143, "interrupted"), (ValueError("a"), 1, "error")],
)
def test_a_report_tells_how_far_it_came(
    error: BaseException, code: int, ended: str, tvae: Tvae, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here at the first item of the second step."""
    shown = Display.show

    def show(self: Display, event: Event) -> None:
        shown(self, event)
        if isinstance(event, ItemDone) and event.output.suffix == ".png":
            raise error

    monkeypatch.setattr(Display, "show", show)
    result = tvae("batch", job, "--failed-list", tmp_path / "failed.txt")
    assert result.exit_code == code
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (step,) = report["steps"]
    assert (report["ended"], step["done"], step["failed"]) == (ended, 1, 1)
    (step,) = json.loads((tmp_path / "back" / "report.json").read_text(encoding="utf-8"))["steps"]
    assert (step["done"], step["failed"]) == (1, 0)
    assert (tmp_path / "failed.txt").read_text(encoding="utf-8").splitlines()[1:] == [f"{tmp_path}/bad.png"]
    monkeypatch.setattr(Display, "show", shown)
    assert tvae("batch", job).exit_code == 3
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["ended"] == "complete"


def test_stopped(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    assert tvae("batch", job, "--fail-fast").exit_code == 3
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["ended"] == "stopped"


def test_what_is_refused_makes_no_folder(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    job.write_text(JOB.replace('"photo.png"', '"none.png"'), encoding="utf-8")
    assert tvae("batch", job).exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_hides_no_end(
    tvae: Tvae, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(self: Display, event: Event) -> None:
        if isinstance(event, ItemDone):
            (tmp_path / "out" / "report.json").mkdir()
            raise KeyboardInterrupt

    monkeypatch.setattr(Display, "show", show)
    result = tvae("batch", job)
    assert result.exit_code == 130
    assert "report.json" in result.stderr
    assert "interrupted" in result.stderr


def test_a_check_that_fails_has_its_own_code(tvae: Tvae, job: Path, tmp_path: Path) -> None:
    check = '[[step]]\noperation = "verify"\ninputs = ["out", "back"]\n'
    job.write_text((JOB + MORE + check).replace(', "bad.png"', ""), encoding="utf-8")
    result = tvae("batch", job)
    assert (result.exit_code, f"step 3, verify of {tmp_path}/back: 2 done" in result.stdout) == (0, False)
    assert f"step 3, verify of {tmp_path}/out: 2 done" in result.stdout
    (tmp_path / "back" / "photo.png").write_bytes(b"x")
    job.write_text(check, encoding="utf-8")
    result = tvae("batch", job)
    assert result.exit_code == 4
    assert "photo.png is damaged" in result.stderr
