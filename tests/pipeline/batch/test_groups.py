"""Groups of a step, which are done one after the other: what they share, and what is different for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_files import DECODE, ENCODE, checksums

from tvae.pipeline.jobs import scanned
from tvae.pipeline.session import model

Batch = Callable[..., Any]
SIZES = '[[step.override]]\nmatch = "sub/*"\nsize = "64x32"\n[[step.override]]\nmatch = "1.png"\nsize = "16x8"\n'
"""Three groups."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of VAEs in the order in which they are opened."""
    names: list[str] = []
    open_model = model.open_model

    def noted(name: str, **how: Any) -> Any:
        names.append(name)
        return open_model(name, **how)

    monkeypatch.setattr(model, "open_model", noted)
    return names


def test_a_vae_is_opened_once_for_all_groups_and_steps(batch: Batch, photos: Path, opened: list[str]) -> None:
    """Once to compute, and once to be asked what it is."""
    (first, second), _, _ = batch(ENCODE + SIZES + DECODE)
    assert (first.done, second.done) == (9, 9)
    assert opened == ["builtin"] * 2


def test_another_type_is_another_opening(batch: Batch, photos: Path, opened: list[str], tmp_path: Path) -> None:
    text = ENCODE + '[[step.override]]\nmatch = "sub/*"\ndtype = "bfloat16"\n'
    ((result,), _, _) = batch(text)
    assert result.done == 9
    assert opened == ["builtin"] * 4
    found = checksums(tmp_path / "out")
    sizes = {name: (tmp_path / "out" / name).stat().st_size for name in found}
    assert max(size for name, size in sizes.items() if "sub" in name) < min(
        size for name, size in sizes.items() if "sub" not in name
    )


def test_items_are_looked_for_once(batch: Batch, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    scan = scanned._scan

    def noted(folder: Path, *more: Any) -> Any:
        looks.append(folder.name)
        return scan(folder, *more)

    monkeypatch.setattr(scanned, "_scan", noted)
    batch(ENCODE + SIZES)
    assert looks == ["in", "sub"]
