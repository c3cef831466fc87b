"""A clip chunk by chunk, each step of which ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tvae.pipeline.engine.run.storage import OwnRows
from tvae.pipeline.memory.offloaded_cache import OffloadedCache
from tvae.pipeline.models.streaming import Cache, ClipStream
from tvae.pipeline.session.broken_group import together
from tvae.pipeline.session.orders import Order, Restore, RunStep, Save
from tvae.pipeline.session.peers import Peers

__all__ = ["SharedStream"]


class SharedStream(ClipStream):
    """On the first rank, whose caller has the chunks and wants the results; or on another one, which is told of each
    step. Between steps each rank has its own rows of the caches."""

    def __init__(
        self, number: int, own: ClipStream, peers: Peers, like: Tensor, tell: Callable[[Order], None], *, last: bool
    ) -> None:
        """own: what makes a step on this rank. like: the type and device of chunks. last: the layout of maps."""
        super().__init__(own._run, own.cuts)
        self.number, self._peers, self._like, self._tell, self._channels_last = number, peers, like, tell, last

    def step(self, chunk: Tensor, *, last: bool = False) -> Tensor:
        """See ``ClipStream``. On the first rank."""
        chunk = chunk.to(self._like.device, self._like.dtype)
        order = RunStep(self.number, tuple(chunk.shape), last)
        self._tell(order)
        with together():
            return self.make(order, chunk)

    def make(self, order: RunStep, chunk: Tensor | None = None) -> Tensor:
        """A step, on all ranks at once. chunk: on the first."""
        given = self._given(chunk, order.shape)
        caches, self.caches = self.caches, []
        result, *self.caches = self._run(given, caches, order.last)
        return self._whole(result)

    def saved(self) -> list[Tensor]:
        """See ``ClipStream``. On the first rank."""
        self._tell(Save(self.number))
        with together():
            return self.put_together()

    def put_together(self) -> list[Tensor]:
        """All caches, whole and on the CPU, on all ranks at once."""
        return [self._whole(cache).cpu() for cache in self.caches]

    def restore(self, caches: Sequence[Tensor]) -> None:
        """See ``ClipStream``. On the first rank."""
        order = Restore(self.number, tuple(tuple(cache.shape) for cache in caches))
        self._tell(order)
        with together():
            self.take_up(order, caches)

    def take_up(self, order: Restore, caches: Sequence[Tensor] | None = None) -> None:
        """Caches of an earlier stream, on all ranks at once; the first has them."""
        given = [None] * len(order.shapes) if caches is None else [cache.to(self._like) for cache in caches]
        self.caches = [self._given(one, shape) for one, shape in zip(given, order.shapes, strict=True)]

    def _given(self, value: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        return self._peers.from_first(value, shape, self._like.dtype, self._like.device)

    def _whole(self, value: Cache) -> Tensor:
        assert not isinstance(value, OffloadedCache), "ranks keep their rows of caches on the device"
        if isinstance(value, Tensor):
            return value
        assert isinstance(value, OwnRows)
        return self._peers.whole(value.rows, value.axis, value.own, channels_last=self._channels_last)
