"""Conversions that end early: what is there is whole, and the same command does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conversions import files_below, tvae

from tvae.pipeline import save_latents

WORDS = ("convert", "lat", "cache", "--for", "comfy", "--posterior", "mean")


@pytest.fixture
def wanted(folders: Any) -> dict[str, bytes]:
    """What comes of 20 pictures."""
    for number in range(20):
        save_latents(f"lat/{number:02}.safetensors", torch.randn(4, 8, 8), vae=folders("sdxl"))
    assert tvae("convert", "lat", "wanted", *WORDS[3:])[0] == 0
    return files_below(Path("wanted"))


@pytest.mark.parametrize("name", ["publish", "write_record", "fill"])
def test_a_run_that_was_interrupted(wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from tvae.pipeline.jobs import cache_plan

    real, calls = getattr(cache_plan, name), list[Any]()

    def killed(*given: Any) -> None:
        real(*given)
        calls.append(given)
        if len(calls) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(cache_plan, name, killed)
    code, _, told = tvae(*WORDS)
    assert (code, "run the same command to continue" in told[-1]) == (130, True)
    there = files_below(Path("cache"))
    assert 0 < len(there) < 20
    assert all(wanted[file] == content for file, content in there.items())
    assert not [path for path in Path("cache").iterdir() if path.name.startswith(".tvae-") and path.is_file()]
    monkeypatch.setattr(cache_plan, name, real)
    code, out, told = tvae(*WORDS)
    assert (code, told, files_below(Path("cache"))) == (0, [], wanted)
    assert out.count("skipped") >= 5


def test_a_full_disk_fails_one_item(wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.jobs import cache_plan

    real, calls = cache_plan.fill, list[Any]()

    def full(*given: Any) -> None:
        calls.append(given)
        real(*given)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_plan, "fill", full)
    code, _, told = tvae(*WORDS)
    assert (code, len(told), "No space left" in told[0]) == (3, 1, True)
    assert len(files_below(Path("cache"))) == 19
    assert tvae(*WORDS)[0] == 0
    assert files_below(Path("cache")) == wanted


def test_a_mistake_of_tvae_s_costs_one_item(wanted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.jobs.conversion import into_cache

    real = into_cache.in_space

    def wrong(tensors: Any, *given: Any) -> Any:
        if len(calls) == 5:
            calls.append(0)
            raise ZeroDivisionError
        calls.append(0)
        return real(tensors, *given)

    calls = list[int]()
    monkeypatch.setattr(into_cache, "in_space", wrong)
    code, _, told = tvae(*WORDS)
    assert (code, len(told), "internal error: ZeroDivisionError" in told[0]) == (3, 1, True)
    assert len(files_below(Path("cache"))) == 19
