"""How many cores a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvae.pipeline.engine.run import control_groups
from tvae.pipeline.settings import cores
from tvae.pipeline.settings.cores import usable_cores


@pytest.fixture(autouse=True)
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process without control groups, of a machine with 64 cores."""
    monkeypatch.setattr(control_groups, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr(control_groups, "OF_THIS_PROCESS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {*range(64)}, raising=False)
    cores._shares.cache_clear()
    yield tmp_path / "mounted"
    cores._shares.cache_clear()


def written(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n", encoding="ascii")


@pytest.mark.parametrize(
    ("told", "wanted"),
    [("200000 100000", 2), ("250000 100000", 3), ("5000 100000", 1), ("max 100000", 64), ("9900000 100000", 64)],
)
def test_a_container_of_version_2(told: str, wanted: int, groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/\n", encoding="ascii")
    written(groups, cpu__max=told)
    assert usable_cores() == wanted


def test_the_smallest_of_those_around_it(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/slurm/job/step\n", encoding="ascii")
    written(groups / "slurm" / "job" / "step", cpu__max="max 100000")
    written(groups / "slurm" / "job", cpu__max="600000 100000")
    written(groups / "slurm", cpu__max="3000000 100000")
    assert usable_cores() == 6


@pytest.mark.parametrize(("quota", "wanted"), [("400000", 4), ("-1", 64)])
def test_version_1(quota: str, wanted: int, groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("5:cpuset:/x\n4:cpuacct,cpu:/docker/1\n0::/\n", encoding="ascii")
    written(groups / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    written(groups / "cpuset", cpu__cfs_quota_us="100000", cpu__cfs_period_us="100000")
    assert usable_cores() == wanted


def test_those_that_it_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 4, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 3


@pytest.mark.parametrize(("told", "wanted"), [(12, 12), (None, 1)])
def test_all_where_the_system_keeps_it_to_none(told: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: told)
    assert usable_cores() == wanted
