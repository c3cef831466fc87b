"""Sources that disappear while a batch is at work: a line for each, and the rest is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from job_files import photo
from program import invoke

from tvae.cli.render import Display
from tvae.pipeline.jobs import RunStarted

COUNT = 12


@pytest.mark.parametrize("source", ['inputs = "in"', 'inputs = "in/*.png"', 'list = "list.txt"'])
def test_sources_that_disappear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    for number in range(COUNT):
        photo(tmp_path / f"in/{number:02d}.png", number)
    (tmp_path / "list.txt").write_text("".join(f"in/{number:02d}.png\n" for number in range(COUNT)))
    job = tmp_path / "job.toml"
    job.write_text(f'operation = "encode"\n{source}\noutput = "out"\n')
    gone = [tmp_path / f"in/{number:02d}.png" for number in (0, 5, 11)]
    show = Display.show

    def removing(display: Any, event: Any) -> None:
        if isinstance(event, RunStarted):
            for path in gone:
                path.unlink(missing_ok=True)
        show(display, event)

    monkeypatch.setattr(Display, "show", removing)
    done = invoke(["batch", str(job), "--no-progress"])
    assert done.exit_code == 3, done.output
    for path in gone:
        (line,) = [line for line in done.stderr.splitlines() if path.name in line]
        assert "does not exist" in line or "No such file" in line
    (step,) = json.loads((tmp_path / "out/report.json").read_text())["steps"]
    assert (step["done"], step["failed"]) == (COUNT - len(gone), len(gone))
    assert sorted(failure["source"] for failure in step["failures"]) == [*map(str, gone)]
    assert len([*(tmp_path / "out").glob("*.safetensors")]) == COUNT - len(gone)
