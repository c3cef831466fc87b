"""Memory in a container or a batch system's job: the smallest limit that holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tvae.pipeline.engine.run import control_groups, group_memory, host_memory
from tvae.pipeline.engine.run.group_memory import left_by_groups

GIB = 1 << 30
UNLIMITED = 9223372036854771712  # as version 1 writes it


class Groups:
    """Folders as Linux shows them."""

    def __init__(self, root: Path) -> None:
        self.mounted, self.own = root / "cgroup", root / "self"
        self.mounted.mkdir()

    def second(self, path: str, limit: int | str | None, used: int, idle: int, *, below: str = "") -> None:
        names = {"memory.max": limit, "memory.current": used}
        self._write(self.mounted / below / path, names, f"anon 1\ninactive_file {idle}\nactive_file 7\n")

    def first(self, path: str, limit: int, used: int, idle: int) -> None:
        names = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used}
        stat = f"cache 1\ninactive_file 3\ntotal_inactive_file {idle}\n"
        self._write(self.mounted / "memory" / path, names, stat)

    def _write(self, folder: Path, numbers: dict[str, int | str | None], stat: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, number in numbers.items():
            if number is not None:
                (folder / name).write_text(f"{number}\n", encoding="ascii")
        (folder / "memory.stat").write_text(stat, encoding="ascii")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    found = Groups(tmp_path)
    monkeypatch.setattr(control_groups, "MOUNTED", found.mounted)
    monkeypatch.setattr(control_groups, "OF_THIS_PROCESS", found.own)
    group_memory._limited.cache_clear()
    yield found
    group_memory._limited.cache_clear()


def test_a_container_of_version_2(groups: Groups) -> None:
    groups.own.write_text("0::/\n", encoding="ascii")
    groups.second("", 8 * GIB, 3 * GIB, GIB)
    assert left_by_groups() == 6 * GIB
    groups.second("", 8 * GIB, 9 * GIB, 0)  # it was found; what is used changes
    assert left_by_groups() == 0


def test_the_smallest_of_those_around_it(groups: Groups) -> None:
    """A job's own group has no limit, the one around it has, and that around both is wider."""
    groups.own.write_text("0::/slurm/job_7/step_0\n", encoding="ascii")
    groups.second("slurm/job_7/step_0", "max", GIB, 0)
    groups.second("slurm/job_7", 4 * GIB, 2 * GIB, GIB // 2)
    groups.second("slurm", 64 * GIB, 40 * GIB, 0)
    assert left_by_groups() == 5 * GIB // 2


def test_version_1_beside_other_groups(groups: Groups) -> None:
    groups.own.write_text("9:name=systemd:/\n4:cpu,memory:/a/b:c\n3:cpuset:/\n0::/\n", encoding="ascii")
    groups.first("", UNLIMITED, 5 * GIB, 0)
    groups.first("a", 16 * GIB, 5 * GIB, GIB)
    groups.first("a/b:c", UNLIMITED, GIB, 0)
    groups.second("", None, 5 * GIB, 0, below="unified")
    assert left_by_groups() == 12 * GIB


def test_a_name_that_only_the_outside_knows(groups: Groups) -> None:
    """In a container whose own group is what is mounted, by a name that is not to be seen there."""
    groups.own.write_text("4:memory:/docker/0123\n0::/../other\n", encoding="ascii")
    groups.first("", 2 * GIB, GIB, 0)
    groups.second("", 3 * GIB, GIB, 0)
    assert left_by_groups() == GIB


@pytest.mark.parametrize("text", ["0::/\n", "4:memory:/x\n", "3:cpuset:/\n", None])
def test_no_limit(text: str | None, groups: Groups) -> None:
    groups.first("x", UNLIMITED, GIB, 0)
    groups.second("", "max", GIB, 0)
    if text is not None:
        groups.own.write_text(text, encoding="ascii")
    assert left_by_groups() is None


def test_a_group_that_goes_away(groups: Groups) -> None:
    groups.own.write_text("0::/gone\n", encoding="ascii")
    groups.second("gone", GIB, 0, 0)
    groups.second("", 2 * GIB, GIB // 2, 0)
    assert left_by_groups() == GIB
    (groups.mounted / "gone" / "memory.current").unlink()
    assert left_by_groups() == 3 * GIB // 2


def test_the_host_has_no_more_than_the_group_leaves(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = host_memory.available_bytes()
    if whole is None:
        pytest.skip("this system does not tell its memory")
    groups.own.write_text("0::/\n", encoding="ascii")
    groups.second("", 1 << 20, 0, 0)
    group_memory._limited.cache_clear()
    assert host_memory.available_bytes() == 1 << 20
    monkeypatch.setattr(host_memory, "left_by_groups", lambda: 1 << 60)
    assert host_memory.available_bytes() in range(whole // 2, 2 * whole)
