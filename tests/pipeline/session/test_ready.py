"""When a prepared run is still of use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tvae.pipeline.session.ready import Ready, serves_still


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_run_serves_while_its_weights_are_there_and_its_memory(in_place: bool, fits: bool, recorded: bool) -> None:
    runner: Any = SimpleNamespace(recorded=recorded, weights_in_place=lambda: in_place)
    planned: Any = SimpleNamespace(fits=lambda _limits, _device: fits)
    spec: Any = None
    limits: Any = None
    ready, device = Ready(runner, planned, spec), torch.device("cpu")
    assert ready.serves(limits, device) == (in_place and (recorded or fits))
    for shared in (False, True):  # ranks keep what they found together
        assert serves_still(ready, limits=limits, device=device, shared=shared) == (
            shared or ready.serves(limits, device)
        )
