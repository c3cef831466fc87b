"""A Hopper card that is not there."""

from __future__ import annotations

import pytest
from hopper_machine import Machine, machine_of


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One that takes pictures of any size."""
    return machine_of(monkeypatch)
