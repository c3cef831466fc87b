"""What a recording does in which order. Whether that keeps to the plan: ``tests/gpu/test_recordings.py``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording


class Graph:
    """In the place of a CUDA graph."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def capture_begin(self, **_: Any) -> None:
        self._told.append("begins")

    def capture_end(self) -> None:
        self._told.append("ends")


class Pool:
    id, device, stream = (0, 1), torch.device("cpu"), None


def test_the_workspace_of_cublas_is_the_first_thing_in_a_recordings_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays to the end, and would divide the memory between values. A handle, which takes memory that a recording
    must not ask for, is there before it begins."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(told))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: told.append("cuBLAS"))

    def run(inputs: Any) -> list[Tensor]:
        told.append("runs")
        return [*inputs]

    Recording(run, [torch.zeros(2)], Pool())  # type: ignore[arg-type]
    assert told == ["cuBLAS", "begins", "cuBLAS", "runs", "ends"]
