"""Checksums of a call's inputs, by which ranks find out whether all have the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.kernels.checksum import WeightChecksums
from tvae.kernels.checksum_on_host import HostChecksums

__all__ = ["Start", "SumsLater", "start_of", "sums_of"]

Start = torch.cuda.Event | None
"""Of a call: when the current stream has done all that it was given before. None where no GPU computes."""

_FIRST_SERVED = -1
"""Priority of a stream whose work the host waits for."""
_streams: dict[torch.device, torch.cuda.Stream] = {}


def start_of(device: torch.device) -> Start:
    """Of a call that begins now."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def sums_of(inputs: Sequence[Tensor]) -> Tensor:
    """[1] int64 on the device of the first input, of all that are there. Nothing waits for the device."""
    first = [x.contiguous() for x in inputs if x.device == inputs[0].device]
    sums = WeightChecksums(first) if first[0].is_cuda else HostChecksums([x.cpu() for x in first])
    return sums().sum(0, keepdim=True)


class SumsLater:
    """Of inputs as they are now. On a GPU they are taken when they are asked for, in a stream of their own: beside work
    that the current stream was given since, which must not write to them. start: see ``Start``."""

    def __init__(self, inputs: Sequence[Tensor], start: Start) -> None:
        self._inputs, self._device, self._start = [*inputs], inputs[0].device, start
        self._sums = None if start is not None else sums_of(inputs)

    def __call__(self) -> Tensor:
        """[1] int64 on the CPU."""
        if self._sums is None and self._start is not None:
            if self._device not in _streams:
                _streams[self._device] = torch.cuda.Stream(self._device, priority=_FIRST_SERVED)
            with torch.cuda.stream(_streams[self._device]):
                _streams[self._device].wait_event(self._start)
                self._sums = sums_of(self._inputs).cpu()
            self._inputs.clear()
        assert self._sums is not None
        return self._sums
