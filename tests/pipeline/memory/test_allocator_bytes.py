"""Told from PyTorch's statistics as its own functions tell it. On a card: used by tests/gpu/test_workspaces.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tvae.pipeline.memory.allocator_bytes import allocator_bytes

CARD = torch.device("cuda", 0)


def test_as_pytorchs_own_functions_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = "reserved_bytes", "allocated_bytes", "active_bytes"
    of_kind = {kind: {"all": {"current": 10 + n, "peak": 20 + n}} for n, kind in enumerate(kinds)}
    told: dict[str, Any] = {**of_kind, "num_ooms": 3}
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda device=None: told)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device=None: told)
    assert allocator_bytes(CARD) == (torch.cuda.memory_reserved(CARD), torch.cuda.memory_allocated(CARD)) == (10, 11)


def test_nothing_before_the_device_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device=None: {})
    assert allocator_bytes(CARD) == (0, 0)
