"""How many cores a process may use."""

from __future__ import annotations

import os

import pytest

from tvae.pipeline.settings.cores import usable_cores


def test_those_that_it_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 4, 5}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert usable_cores() == 3


@pytest.mark.parametrize(("told", "wanted"), [(12, 12), (None, 1)])
def test_all_where_the_system_keeps_it_to_none(told: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: told)
    assert usable_cores() == wanted
