"""The calls of a device: how long each took, wherever its results lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch
from gpu_clock import Clock

from tvae.pipeline.jobs import calls, pictures
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.pictures import Results

GPU = torch.device("cuda")


def test_a_gpu_whose_results_are_on_the_cpu_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a clip, of a large picture, and of any where memory was named."""
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    model, busy = SimpleNamespace(device=GPU), Busy(1)
    context = SimpleNamespace(model_for=lambda _vae: model, busy=busy, job=SimpleNamespace(vram=None))
    operation = SimpleNamespace(compute=lambda _model, values: [torch.stack(values)])
    picture = SimpleNamespace(vae="one", values=torch.ones(2), pixels=2)
    made = calls.Calls(cast(Any, operation), cast(Any, context))
    found = made.make(cast(Any, [picture, picture]))
    assert isinstance(found, Results)
    assert found.on_its_way
    made.wait()
    assert found.seconds == 1.0
    assert busy.shares(2.0)["compute"] == 0.5
    assert torch.equal(found.of(1)[0], picture.values)


def test_moments_of_a_cpu() -> None:
    began = pictures.moment(torch.device("cpu"))
    assert 0 <= pictures.between(began, pictures.moment(torch.device("cpu"))) < 60


@pytest.mark.parametrize(
    ("pixels", "pictures", "vram", "most"),
    [(1 << 20, 1, None, 6), (1 << 22, 1, None, 6), (1 << 21, 3, None, 2), (1 << 24, 1, None, 2), (64, 1, "4GiB", 2)],
)
def test_small_calls_are_given_further_ahead(pixels: int, pictures: int, vram: str | None, most: int) -> None:
    """A new size keeps the host for longer than the device has work of one call."""
    waited: list[int] = []

    class Call(Results):
        on_its_way = True

        def __init__(self) -> None:
            pass

        def wait(self) -> None:
            waited.append(len(given))

        @property
        def seconds(self) -> float:
            return 0.0

    given: list[int] = []
    model = SimpleNamespace(device=torch.device("cpu"))
    context = SimpleNamespace(model_for=lambda _vae: model, busy=Busy(1), job=SimpleNamespace(vram=vram))
    operation = SimpleNamespace(compute=lambda _model, values: [given.append(1), torch.zeros(1)][1:])
    picture = SimpleNamespace(vae="one", values=torch.ones(2), pixels=pixels)
    made = calls.Calls(cast(Any, operation), cast(Any, context))
    with mock.patch.object(calls, "Results", return_value=Call()):
        for _ in range(9):
            made.make(cast(Any, [picture] * pictures))
    assert waited == [*range(most, 9)], "each waits for the one that was given so many before"
