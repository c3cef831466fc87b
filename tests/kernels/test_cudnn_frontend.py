"""What the users of cuDNN's frontend share, by a stand-in for the library; with it: ``tests/gpu``."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from tvae.kernels import cudnn_frontend


def test_a_thread_has_one_handle_for_a_device_on_the_stream_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn = SimpleNamespace(made=0, streams=[])

    def create_handle() -> int:
        cudnn.made += 1
        return int(cudnn.made)

    cudnn.create_handle = create_handle
    cudnn.set_stream = lambda handle, stream: cudnn.streams.append((handle, stream))
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    monkeypatch.setattr(cudnn_frontend, "_handles", threading.local())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=10 + device.index))
    assert [cudnn_frontend.handle(torch.device("cuda", index)) for index in (0, 1, 0)] == [1, 2, 1]
    assert cudnn.streams == [(1, 10), (2, 11), (1, 10)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cudnn_frontend.handle, torch.device("cuda", 0)).result() == 3
