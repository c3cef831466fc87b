"""What is done before each strip of a run, beside telling that the process lives."""

from __future__ import annotations

import torch

from tvae.pipeline.files.pulse import beat
from tvae.pipeline.memory.heap import return_what_is_free

__all__ = ["DeviceMark", "return_and_beat"]


class DeviceMark:
    """Tells after a run whether the device waits for Python, which starts operations one by one."""

    def __init__(self, device: torch.device) -> None:
        self._last, self._stream = torch.cuda.Event(), torch.cuda.current_stream(device)

    def __call__(self) -> None:
        """Before a strip."""
        beat()
        self._last.record(self._stream)

    @property
    def reached(self) -> bool:
        """Has the device done all but the last strip, as soon as that is started?"""
        return self._last.query()


def return_and_beat() -> None:
    """Before a strip, where somebody counts the process's memory."""
    return_what_is_free()
    beat()
