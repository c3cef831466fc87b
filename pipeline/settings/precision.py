"""Exact float32, where PyTorch is allowed to round its operands: TF32 on a GPU, TF32 and bfloat16 in a CPU's oneDNN.

PyTorch has two interfaces for it. The new one (``fp32_precision``) has a value for each kind of operation, for all of a
backend, and for all backends; who has none of its own ("none") follows the next. The old one (``allow_tf32``,
``set_float32_matmul_precision``) keeps notes of its own beside those, and raises where they differ. Both read after a
call what they read before it; where they agreed before, they agree during the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tvae.pipeline.engine.capture.quiet import without_warnings
from tvae.pipeline.settings.shared import Shared

__all__ = ["exact_float32"]

Place = tuple[str, str]
_GENERIC: Place = ("generic", "all")
_MATMUL: Place = ("cuda", "matmul")
_MATMUL_CPU: Place = ("mkldnn", "matmul")
_OF_DEVICES: dict[str, tuple[Place, ...]] = {
    "cuda": (("cuda", "conv"), ("cuda", "rnn"), _MATMUL),
    "cpu": (("mkldnn", "conv"), ("mkldnn", "rnn"), _MATMUL_CPU),
    "xpu": (("mkldnn", "conv"), ("mkldnn", "rnn"), _MATMUL_CPU),
}
_EXACT, _UNSET = "ieee", "none"


def _get(place: Place) -> str:
    """What is in force there."""
    return str(torch._C._get_fp32_precision_getter(*place))


def _put(place: Place, precision: str) -> None:
    torch._C._set_fp32_precision_setter(*place, precision)


def _rounds(place: Place) -> bool:
    return _get(place) not in (_EXACT, _UNSET)


def _own(place: Place) -> str:
    """What was set for a place that rounds itself; "none" where it follows the next. PyTorch does not tell: whether it
    follows shows when the next is exact for an instant."""
    now = _get(place)
    if place == _GENERIC:
        return now
    above = (place[0], "all") if place[1] != "all" else _GENERIC
    if _get(above) != now:
        return now
    kept = _own(above)
    _put(above, _EXACT)
    follows = _get(place) == _EXACT
    _put(above, kept)
    return _UNSET if follows else now


class _Exact(Shared[str]):
    """By types of devices. What one call needed stays until the last has left, whatever its device: the settings of
    one device cannot be put back without touching another's."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[_Taken] = []

    def _set(self, wanted: Sequence[str]) -> None:
        for device in dict.fromkeys(wanted):
            places = [place for place in _OF_DEVICES.get(device, ()) if _rounds(place)]
            if places:
                taken = any(_MATMUL_CPU in each.own for each in self._taken)
                with without_warnings():  # PyTorch says that its old interface is old
                    self._taken.append(_Taken(places, device == "cuda", taken))

    def _give_back(self) -> None:
        if self._taken:
            with without_warnings():
                while self._taken:
                    self._taken.pop().put_back()


class _Taken:
    """Places that were not exact, and are now; ``own`` is what was set for them. cpu_taken: another has the CPU's.

    cudnn, matmul: what the old interface says, None where it need not be changed: it says "exact", or nothing at all,
    because the new one was used beside it. matmul is "high" or "medium"; a CPU's products of matrices go by it as well.
    """

    def __init__(self, places: list[Place], on_cuda: bool, cpu_taken: bool) -> None:
        self._cudnn = True if on_cuda and _told(torch._C._get_cudnn_allow_tf32) else None
        self._matmul: str | None = None
        if on_cuda and _told(torch._C._get_cublas_allow_tf32):
            self._matmul = _told(torch.get_float32_matmul_precision)
        if self._matmul is not None and _rounds(_MATMUL_CPU):
            places = [*places, _MATMUL_CPU]
        elif self._matmul == "medium" and not cpu_taken:
            self._matmul = None  # the CPU's would be set where this is put back
        self.own = {place: _own(place) for place in places}
        if _MATMUL_CPU in places:
            _put(_MATMUL_CPU, _EXACT)
        if self._cudnn is not None:
            torch._C._set_cudnn_allow_tf32(False)
        if self._matmul is not None:
            torch._C._set_cublas_allow_tf32(False)
        for place in places:  # the old interface has written into them
            _put(place, _EXACT)

    def put_back(self) -> None:
        """Unless somebody else has set something else meanwhile."""
        own = {p: self.own[p] if _get(p) == _EXACT else _own(p) if _rounds(p) else _get(p) for p in self.own}
        if self._cudnn is not None and not _told(torch._C._get_cudnn_allow_tf32):
            torch._C._set_cudnn_allow_tf32(True)
        if self._matmul is not None and _told(torch.get_float32_matmul_precision) == "highest":
            if self._matmul == "high":
                torch._C._set_cublas_allow_tf32(True)  # leaves the CPU's place alone, which may follow another
            else:
                torch.set_float32_matmul_precision(self._matmul)
        for place, precision in own.items():
            _put(place, precision)


def _told(read: Callable[[], Any]) -> Any:
    """None where the two interfaces say different things, which PyTorch refuses to read."""
    try:
        return read()
    except RuntimeError:
        return None


exact_float32 = _Exact()
"""``borrowed(type of device)``"""
