"""Tests that copy their own process can run after those that have computed in it."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from process_copy import process_copy


@pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="copies its own process")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_copy_computes_after_this_process_has() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.randn(1 << 20)
        want = float((x * 2).sum())  # by OpenMP's threads
        process = process_copy()
        if process == 0:
            os._exit(0 if abs(float((x * 2).sum()) - want) < 1.0 else 1)
        assert os.waitpid(process, 0)[1] == 0
    finally:
        torch.set_num_threads(before)
