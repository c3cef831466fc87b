"""Conversions that end early: what is there is whole, and the same command does the rest."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from conversions import files_below, tvae

from tvae.pipeline import save_latents

WORDS = ("convert", "lat", "cache", "--for", "comfy", "--posterior", "mean")


@pytest.fixture
def wanted(folders: Any) -> dict[str, bytes]:
    """What comes of 40 pictures."""
    for number in range(40):
        save_latents(f"lat/{number:02}.safetensors", torch.randn(4, 8, 8), vae=folders("sdxl"))
    assert tvae("convert", "lat", "wanted", *WORDS[3:])[0] == 0
    return files_below(Path("wanted"))


@pytest.mark.parametrize("name", ["publish", "write_record", "fill"])
def test_a_run_that_was_interrupted(wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from tvae.pipeline.jobs import cache_plan

    real, calls = getattr(cache_plan, name), count(1)

    def killed(*given: Any) -> None:
        number = next(calls)
        real(*given)
        if number == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(cache_plan, name, killed)
    code, _, told = tvae(*WORDS)
    assert (code, "run the same command to continue" in told[-1]) == (130, True)
    there = files_below(Path("cache"))
    assert 0 < len(there) < 40
    assert all(wanted[file] == content for file, content in there.items())
    assert not [path for path in Path("cache").iterdir() if path.name.startswith(".tvae-") and path.is_file()]
    monkeypatch.setattr(cache_plan, name, real)
    code, out, told = tvae(*WORDS)
    assert (code, told, files_below(Path("cache"))) == (0, [], wanted)
    assert out.count("skipped") >= 5


def test_a_full_disk_fails_one_item(wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.jobs import cache_plan

    real, calls = cache_plan.fill, count(1)

    def full(*given: Any) -> None:
        number = next(calls)
        real(*given)
        if number == 9:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_plan, "fill", full)
    code, _, told = tvae(*WORDS)
    assert (code, len(told), "No space left" in told[0]) == (3, 1, True)
    assert len(files_below(Path("cache"))) == 39
    assert tvae(*WORDS)[0] == 0
    assert files_below(Path("cache")) == wanted


def test_a_mistake_of_tvae_s_costs_one_item(wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.jobs.conversion import into_cache

    real, calls = into_cache.in_space, count(1)

    def wrong(tensors: Any, *given: Any) -> Any:
        if next(calls) == 5:
            raise ZeroDivisionError
        return real(tensors, *given)

    monkeypatch.setattr(into_cache, "in_space", wrong)
    code, _, told = tvae(*WORDS)
    assert (code, len(told), "internal error: ZeroDivisionError" in told[0]) == (3, 1, True)
    assert len(files_below(Path("cache"))) == 39
