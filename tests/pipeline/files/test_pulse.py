"""What counts as getting on: strips of a call, waiting for another run, and waits for a decoder, which have an end."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_vaes import TINY

from tvae.pipeline import TiledVAE
from tvae.pipeline.files.lock import OutputHeld
from tvae.pipeline.files.pulse import beats
from tvae.pipeline.jobs.devices import alive
from tvae.pipeline.jobs.stages import clip_outcome
from tvae.pipeline.media import deadlines


@pytest.mark.parametrize("vram", [None, "4GiB"])
def test_strips(vram: str | None) -> None:
    vae = TiledVAE(TINY["AutoencoderTiny"].build(), strip=2, vram=vram)
    before = beats()
    with torch.no_grad():
        vae.decode(TINY["AutoencoderTiny"].input("decode", 16, 5))
    assert beats() - before >= 8


def test_waiting_for_another_run() -> None:
    def clip(_item: Any) -> None:
        raise OutputHeld(Path("out"))

    before = beats()
    told: list[Any] = []
    context: Any = SimpleNamespace(held=set(), notify=lambda *what: told.append(what))
    item: Any = SimpleNamespace(index=0)
    operation: Any = SimpleNamespace(clip=clip)
    assert [clip_outcome(operation, item, context) for _ in range(3)] == [None] * 3
    assert (beats() - before, len(told)) == (3, 1)


def test_waiting_for_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_EVERY", 0.01)
    before = beats()
    with deadlines.Deadlines().within(60, lambda: None):
        time.sleep(0.2)
    assert beats() - before >= 2


def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that the machine slept is nobody's silence."""
    now = [100.0]
    monkeypatch.setattr(alive, "time", SimpleNamespace(monotonic=lambda: now[0]))
    silence = alive.Silence()
    silence.heard(1)
    for _ in range(200):
        now[0] += 4.5
        silence.pass_time()
        silence.heard(2)
    assert not silence.too_long(1)
    now[0] += 3600
    silence.pass_time()
    assert silence.too_long(1)
    assert not silence.too_long(2)
    assert silence.cause == "its process gave no sign of life for 15 minutes"
