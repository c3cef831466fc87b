"""A VAE as jobs compute with it, each call of which several ranks share by rows.

The first rank does the job: it has the inputs, and what it computes it tells the others first, which make the same
calls (``follow``). Inputs go to all of them, results to the first; between, each has its own rows.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.device import uses_channels_last
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.engine.run.storage import RowSink, RowSource
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.streaming import ClipStream
from tvae.pipeline.session.broken_group import FOUND_BY_ALL, together
from tvae.pipeline.session.choose_plan import rows_dim
from tvae.pipeline.session.model import Model
from tvae.pipeline.session.orders import Order, Restore, RunSide, RunStep, StartStream
from tvae.pipeline.session.outputs import Posterior, Spec, posterior_of
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.shared_stream import SharedStream
from tvae.pipeline.session.task import Task

__all__ = ["SharedModel"]


class SharedModel(Model):
    """See the module's docstring. Inputs and results are whole on each rank's device."""

    def __init__(self, *of_model: Any, peers: Peers, tell: Callable[[Order], None] = lambda _: None) -> None:
        """tell: hands an order to all other ranks; for the first."""
        more: dict[str, Any] = {"peers": peers}
        super().__init__(*of_model, **more)
        self._peers, self._tell = peers, tell
        self._numbers = itertools.count()
        self._streams: weakref.WeakValueDictionary[int, SharedStream] = weakref.WeakValueDictionary()
        self._followed: dict[int, SharedStream] = {}

    @property
    def goes_by_frames(self) -> bool:
        """Frames that come one by one are strips of time; ranks share rows."""
        return False

    def stream(self, side: Side) -> ClipStream | None:
        """See ``Model``."""
        if self._session.steps(side) is None:
            return None
        order = StartStream(next(self._numbers), side, frozenset(self._streams.keys()))
        found = self._streams[order.number] = self._started(order)
        self._tell(order)
        return found

    def follow(self, order: Order) -> None:
        """Do what the first rank does; it has the result. What all ranks find out alike is raised there."""
        try:
            if isinstance(order, RunSide):
                self._computed(order)
            elif isinstance(order, StartStream):
                kept = {number: stream for number, stream in self._followed.items() if number in order.wanted}
                self._followed = {**kept, order.number: self._started(order)}
            elif isinstance(order, RunStep):
                self._followed[order.number].make(order)
            elif isinstance(order, Restore):
                self._followed[order.number].take_up(order)
            else:
                self._followed[order.number].put_together()
        except FOUND_BY_ALL:
            return

    def plan_whole(self, shape: tuple[int, ...], side: Side) -> Plan:
        """See ``Model``: as this rank would run it."""
        call = Call()
        if self._frames_in_batch:
            shape = (shape[2], shape[1], *shape[3:])
            call = Call(options=(("num_frames", shape[0]),)) if side == "decode" else call
        like: Tensor = torch.empty((), dtype=self.dtype, device=self.device).expand(shape)  # takes no memory
        return self._session.plan(Task(side), [like], call, {})

    def _run(self, side: Side, x: Tensor | RowSource, call: Call, sink: RowSink | None = None) -> Posterior:
        """See ``Model``."""
        if not isinstance(x, Tensor):
            x = x.fetch(0, x.shape[rows_dim(x)]).result()
        assert isinstance(x, Tensor)
        whole = x.to(self.device, self.dtype).contiguous()
        order = RunSide(side, call, tuple(whole.shape))
        self._tell(order)
        with together():
            tensors, spec = self._computed(order, whole)
        if sink is not None:
            sink.keep(0, tensors[0].shape[rows_dim(sink)], tensors[0]).result()
            return Posterior(torch.empty(0), None)
        return posterior_of(spec, tensors) if side == "encode" else Posterior(tensors[0], None)

    def _computed(self, order: RunSide, x: Tensor | None = None) -> tuple[list[Tensor], Spec]:
        """On all ranks at once. x: on the first."""
        given = self._peers.from_first(x, order.shape, self.dtype, self.device)
        return self._session.compute(Task(order.side), [given], order.call)

    def _started(self, order: StartStream) -> SharedStream:
        own = self._session.stream(order.side)
        assert own is not None, "the first rank asked whether there are steps"
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        last = uses_channels_last(self.preset, self.dtype, self.device)
        return SharedStream(order.number, own, self._peers, like, self._tell, last=last)
