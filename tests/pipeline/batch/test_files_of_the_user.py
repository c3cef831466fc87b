"""Files of the user's that have the names of a batch's own are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import ENCODE, NAME

from tvae.pipeline.batch.report import check_places, write_reports
from tvae.pipeline.batch.shards import Shard
from tvae.pipeline.errors import UsageError

Batch = Callable[..., Any]


def done(batch: Batch) -> None:
    """As the command does it."""
    check_places(["out"], None)
    write_reports(batch(ENCODE)[0], None)


@pytest.mark.parametrize(
    "content", ['{"id": 1}\n', "a list\nof the user's", "[1]", '{"steps": 1}', '{"output"}', '{"output": "x"}\n']
)
@pytest.mark.parametrize("name", ["manifest.jsonl", "report.json"])
def test_they_are_left_alone(
    batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text(content)
    with pytest.raises(UsageError, match=r"is not a .* of tvae; move it"):
        done(batch)
    assert (tmp_path / "out" / name).read_text() == content
    assert [path.name for path in (tmp_path / "out").rglob("*.*")] == [name]


def test_a_later_step_is_looked_at_before_the_first_is_done(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / NAME).write_text("mine\n")
    with pytest.raises(UsageError, match="is not a manifest"):
        check_places([str(tmp_path / "out"), str(tmp_path / "back")], None)
    with pytest.raises(UsageError, match="is not a manifest"):
        check_places([str(tmp_path / "back")], None)
    check_places([str(tmp_path / "back")], Shard(1, 2))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] in (["in", "back"], ["back", "in"])


def test_its_own_are_replaced(batch: Batch, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for cut in (None, 0, 5, 40, 400):
        done(batch)
        manifest = tmp_path / "out" / "manifest.jsonl"
        assert len(manifest.read_bytes().splitlines()) == 9
        manifest.write_bytes(manifest.read_bytes()[:cut])
