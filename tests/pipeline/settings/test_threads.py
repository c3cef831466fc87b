"""Threads of the CPU: as many as the work keeps busy, for the length of a call; a caller's own number is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_vaes import TINY

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.session import model as session_model
from tvae.pipeline.session.model import open_model
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.settings.threads import computing_with, kept_busy


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads compute, of each run."""
    found: list[int] = []
    run = Runner.run

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(torch.get_num_threads())
        return run(*args, **kwargs)

    monkeypatch.setattr(Runner, "run", noted)
    return found


@pytest.mark.parametrize(
    ("work", "threads"),
    [([], 1), ([0, 0], 1), ([29e6], 1), ([0, 30e6, 30e6], 1), ([120e6], 4), ([0, 60e6, 180e6], 4), ([1e12], 16)],
)
def test_how_many_are_kept_busy(work: list[float], threads: int) -> None:
    assert kept_busy(work, 16) == threads


def test_small_pictures_take_fewer_than_large_ones(seen: list[int]) -> None:
    before, model = torch.get_num_threads(), open_model("builtin", device="cpu", threads=3)
    for size in (64, 160, 64):
        model.encode(torch.zeros(1, 3, size, size))
    assert seen == [1, 3, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("cores", "named", "wanted"), [(2, None, 2), (64, None, 8), (2, 5, 5)])
def test_no_more_than_the_cores_of_a_container(
    cores: int, named: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads beyond its share of the processors' time stop one another; who names a number has it."""
    monkeypatch.setattr(session_model, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert open_model("builtin", device="cpu", threads=named)._session._threads == wanted


def test_a_failure_gives_the_number_back() -> None:
    before, within = torch.get_num_threads(), list[int]()

    def failing() -> None:
        with computing_with(before + 3):
            within.append(torch.get_num_threads())
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        failing()
    assert (within, torch.get_num_threads()) == ([before + 3], before)


def test_a_callers_number_is_left_alone(seen: list[int]) -> None:
    tiny, before = TINY["AutoencoderKL"], torch.get_num_threads()
    vae: Any = TiledVAE(tiny.build())
    with computing_with(before + 2):
        vae.decode(tiny.input("decode", 4, 4))
        assert torch.get_num_threads() == before + 2
    assert seen == [before + 2]


def test_a_job_has_at_least_one() -> None:
    with pytest.raises(UsageError, match="threads 0 is too few"):
        Job("encode", ("x",), threads=0)
