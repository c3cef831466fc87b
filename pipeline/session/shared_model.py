"""A VAE as jobs compute with it, each call of which several ranks share by rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.session.model import Model
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.task import Task

__all__ = ["SharedModel"]


class SharedModel(Model):
    """See the module's docstring. Inputs and results are whole on each rank's device."""

    def __init__(self, *of_model: Any, peers: Peers) -> None:
        more: dict[str, Any] = {"peers": peers}
        super().__init__(*of_model, **more)

    @property
    def goes_by_frames(self) -> bool:
        """Frames that come one by one are strips of time; ranks share rows."""
        return False

    def plan_whole(self, shape: tuple[int, ...], side: Side) -> Plan:
        """See ``Model``: as this rank would run it."""
        call = Call()
        if self._frames_in_batch:
            shape = (shape[2], shape[1], *shape[3:])
            call = Call(options=(("num_frames", shape[0]),)) if side == "decode" else call
        like: Tensor = torch.empty((), dtype=self.dtype, device=self.device).expand(shape)  # takes no memory
        return self._session.plan(Task(side), [like], call, {})
