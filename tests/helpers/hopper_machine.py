"""A Hopper card that is not there: it notes what the convolution's kernel is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.kernels.cuda import hopper_conv, hopper_cut
from tvae.kernels.cuda.ring import Card

__all__ = ["ALL", "Machine", "last", "machine_of"]

ALL = 1, 1, 1, 1
HOPPER = Card((9, 0), 132, 232448, 233472)


def last(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16().contiguous(memory_format=torch.channels_last)


class Machine:
    """A Hopper card that notes what it is told."""

    def __init__(self) -> None:
        self.built: list[Any] = []
        self.boxes: list[tuple[Any, ...]] = []
        self.work: dict[str, int] = {}
        self.blocks = 0

    def boxes_of(self, *layout: Any) -> Any:
        def at(address: int) -> Any:
            self.boxes.append((address, *layout))
            return SimpleNamespace(getPtr=lambda: 1)

        return SimpleNamespace(at=at)

    def launcher(self, kernel: str, blocks: int, threads: int, shared: int, device: Any) -> Callable[..., None]:
        assert (kernel, threads, device) == ("kernel", 384, None)
        assert shared <= HOPPER.shared_block

        def launch(*addresses: int) -> None:
            assert len(addresses) == 5
            work = hopper_cut.Work.from_address(addresses[-1])
            self.work, self.blocks = {name: getattr(work, name) for name, *_ in work._fields_}, blocks

        return launch


def machine_of(patch: pytest.MonkeyPatch, busy: float = 0.0) -> Machine:
    made = Machine()
    patch.setattr(hopper_conv, "missing", lambda: None)
    for module in (hopper_conv, hopper_cut):
        patch.setattr(module, "card", lambda _: HOPPER)
    patch.setattr(hopper_conv, "load", lambda *key: made.built.append(key) or "kernel")
    patch.setattr(hopper_cut, "boxes_of", made.boxes_of)
    for name in ("cut_for", "_taps_of"):  # what is known of other machines' boxes
        patch.setattr(hopper_cut, name, lru_cache(getattr(hopper_cut, name).__wrapped__))
    patch.setattr(hopper_conv, "cut_for", hopper_cut.cut_for)
    patch.setattr(hopper_conv, "StructLaunch", made.launcher)
    hopper_conv._launcher.cache_clear()
    patch.setattr(hopper_conv, "_BUSY", busy)
    patch.setattr(hopper_conv, "_BUSY_CLIP", busy)
    return made
