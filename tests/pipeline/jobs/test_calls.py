"""The calls of a device: how long each took, wherever its results lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

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
    context = SimpleNamespace(model_for=lambda _vae: model, busy=busy)
    operation = SimpleNamespace(compute=lambda _model, values: [torch.stack(values)])
    picture = SimpleNamespace(vae="one", values=torch.ones(2))
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
