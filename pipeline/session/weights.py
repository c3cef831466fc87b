"""Weights by name, in the type and memory layout of a computation: cast once, and again only when they changed.

PyTorch counts writes to a tensor, but not those through ``tensor.data`` (averages of weights, merged adapters), nor
NumPy's. Where somebody else may write into the weights, they are watched: a checksum of all of them is taken at each
run, on a GPU beside it, and compared with that of the moment they were copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tvae.kernels.checksum import WeightChecksums
from tvae.kernels.checksum_on_host import HostChecksums
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.errors import UsageError

__all__ = ["PreparedWeights", "WeightWatch", "made_for_inference", "places_of", "weights_of"]

_FIRST_SERVED = -1
"""Priority of a stream on a GPU whose few kernels do not wait until a run leaves room."""


class _Given(NamedTuple):
    """What was given: the state of the sources, what was prepared of them, and where that lies. It may be views of the
    sources, whose memory was freed since and replaced by other memory at the same place."""

    states: list[Any]
    weights: dict[str, Tensor]
    places: list[int]


class PreparedWeights:
    """Casts and lays out weights on demand, and remembers the result for as long as the source stays what it was."""

    def __init__(
        self,
        source: Callable[[Sequence[str]], Mapping[str, Tensor]],
        dtype: torch.dtype | None,
        channels_last: bool,
        there: Callable[[], Mapping[str, Tensor]] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """source: the current weights, at least those of the names it is given. dtype: that of floating weights; None:
        their own. channels_last: whether they are laid out so; otherwise they lie as they do. there: those that asking
        the source takes no memory for; None where it never does. device: that they are brought to; None: where they
        are."""
        self._device = device
        self._source, self._dtype, self._channels_last = source, dtype, channels_last
        self._there = there or (lambda: source([]))
        self._done: dict[str, tuple[Any, Tensor]] = {}
        self._given: dict[tuple[str, ...], _Given] = {}
        self.made: WeakKeyDictionary[Op, Tensor] = WeakKeyDictionary()
        """What was computed of these weights alone, by the operations that did."""
        self._asked: dict[str, Tensor] = {}
        self._watch: WeightWatch | None = None
        self._looks = True

    def __call__(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named weights. Raises UsageError for a name the source does not have."""
        wanted = tuple(names)
        if not self._looks and (known := self._given.get(wanted)) is not None:
            return known.weights.copy()
        have = self._source(names)
        missing = [n for n in names if n not in have]
        if missing:
            raise UsageError(f"the VAE has no weight '{missing[0]}' ({len(missing)} missing); are its files complete?")
        self._asked |= {name: have[name] for name in names}
        states = _states([have[name] for name in names])
        known = self._given.get(wanted)
        if known is None or known.states != states or places_of(known.weights) != known.places:
            made = {name: self._prepared(name, have[name]) for name in names}
            known = self._given[wanted] = _Given(states, made, places_of(made))
        return known.weights.copy()

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        """Those that were given before are given again, and nobody looks whether they have changed: for a run that is
        thrown away if they have."""
        self._looks = False
        try:
            yield
        finally:
            self._looks = True

    def in_their_places(self) -> bool:
        """Does all memory that was given still belong to its weights? See ``Runner.weights_in_place``."""
        return all(places_of(known.weights) == known.places for known in self._given.values())

    def in_place(self, names: Sequence[str]) -> dict[str, Tensor] | None:
        """The named weights, which take their memory now; None where there is none for them."""
        try:
            return self(names)
        except torch.OutOfMemoryError:
            return None

    def to_come(self, names: Sequence[str]) -> list[str]:
        """Those of the names that a call for them would take memory for."""
        there = self._there()
        return [n for n in names if n not in there or not (self._is_ready(there[n]) or self._is_done(n, there[n]))]

    def sums(self) -> dict[str, int]:
        """A checksum of each weight that was asked for."""
        return WeightWatch(self._asked, {}).sums

    def sums_of_all(self) -> dict[str, int]:
        """A checksum of each weight that the source has."""
        return WeightWatch(self._source([]), {}).sums

    def digest(self) -> int:
        """One number of the names and values of what was asked for, as a run has used them that is just over."""
        if self._watch is None:  # of before they were written to
            self._watch = WeightWatch(self._asked, {})
        return self._watch.digest

    def forget(self) -> None:
        """Drop what was prepared."""
        self._done.clear()
        self._given.clear()
        self.made.clear()
        self._asked.clear()
        self._watch = None

    def start(self, now: torch.cuda.Event | None = None) -> torch.cuda.Event | None:
        """Of the work that the current stream is given from now on; None where there is no checksum on a GPU yet, or
        not of all weights that were asked for. now: has been recorded for that."""
        watch = self._watch
        return (now or watch.start()) if watch is not None and watch.weights == [*self._asked] else None

    def look(self, start: torch.cuda.Event | None = None) -> Callable[[], bool]:
        """Have the device look whether a weight that was asked for was written to since. The answer waits for it.
        start: it need not wait for work that came later. None: for nothing that is still to come."""
        old = self._watch
        if old is not None and old.weights == [*self._asked]:
            return old.look(start or old.start())
        self._watch = WeightWatch(self._asked, {} if old is None else old.sums)
        changed = self._watch.changed
        return lambda: changed

    def _prepared(self, name: str, weight: Tensor) -> Tensor:
        if self._is_ready(weight):
            self._done.pop(name, None)
            return weight.detach()
        if not self._is_done(name, weight):
            kind, layout = self._form(weight)
            copied = weight.detach().to(self._device or weight.device, kind)
            self._done[name] = (_state(weight), copied if layout is None else copied.contiguous(memory_format=layout))
        return self._done[name][1]

    def _form(self, weight: Tensor) -> tuple[torch.dtype, torch.memory_format | None]:
        kind = self._dtype if self._dtype is not None and weight.is_floating_point() else weight.dtype
        return kind, memory_format(weight.ndim, True) if self._channels_last else None

    def _is_ready(self, weight: Tensor) -> bool:
        kind, layout = self._form(weight)
        if kind != weight.dtype or (self._device or weight.device) != weight.device:
            return False
        return layout is None or weight.is_contiguous(memory_format=layout)

    def _is_done(self, name: str, weight: Tensor) -> bool:
        return name in self._done and self._done[name][0] == _state(weight)


class WeightWatch:
    """Checksums of weights on one device. known: those of some of them at an earlier time, by name."""

    def __init__(self, weights: Mapping[str, Tensor], known: Mapping[str, int]) -> None:
        self.weights = [*weights]
        tensors = [*weights.values()]
        self._cuda = bool(tensors) and tensors[0].device.type == "cuda"
        self._checksums = WeightChecksums(tensors) if self._cuda else HostChecksums([t.cpu() for t in tensors])
        self._now = self._checksums().cpu().clone()
        self._host = torch.empty_like(self._now, pin_memory=self._cuda)
        self._beside = torch.cuda.Stream(tensors[0].device, priority=_FIRST_SERVED) if self._cuda else None
        if self._beside is not None and isinstance(self._checksums, WeightChecksums):
            self._checksums.also_on(self._beside)
        self._seen = torch.cuda.Event() if self._cuda else None
        self.sums = dict(zip(self.weights, self._now.tolist(), strict=True))
        self.changed = any(self.sums[name] != value for name, value in known.items() if name in self.sums)

    @cached_property
    def digest(self) -> int:
        """Of names and checksums, 64 bits."""
        found = hashlib.sha256(repr(sorted(self.sums.items())).encode()).digest()
        return int.from_bytes(found[:8], "little", signed=True)

    def start(self) -> torch.cuda.Event | None:
        """See ``PreparedWeights.start``."""
        return None if self._beside is None else torch.cuda.current_stream(self._beside.device).record_event()

    def look(self, start: torch.cuda.Event | None) -> Callable[[], bool]:
        """See ``PreparedWeights.look``. On a GPU in a stream of its own, beside the run."""
        if self._beside is None or self._seen is None or start is None:
            self._host.copy_(self._checksums())
        else:
            self._beside.wait_event(start)
            with torch.cuda.stream(self._beside):
                self._host.copy_(self._checksums(), non_blocking=True)
            self._seen.record(self._beside)

        def written() -> bool:
            if self._seen is not None:
                self._seen.synchronize()
            return not torch.equal(self._host, self._now)

        return written


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those of several names under each."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def places_of(weights: Mapping[str, Tensor]) -> list[int]:
    """Addresses; 0 of a weight whose memory was freed."""
    return [*map(Tensor.data_ptr, weights.values())]


def made_for_inference(module: nn.Module) -> bool:
    """Has it weights that were made in inference mode? The exporter takes none."""
    return any(t.is_inference() for t in (*module.parameters(), *module.buffers()))


def _states(weights: Sequence[Tensor]) -> list[Any]:
    """Of all of them, looked at together: equal where each ``_state`` is. Of many weights that takes a tenth."""
    counted = [w for w in weights if not w.is_inference()]
    looks = Tensor.data_ptr, attrgetter("dtype"), attrgetter("device"), attrgetter("shape")
    return [[*map(look, weights)] for look in looks] + [[*map(attrgetter("_version"), counted)]]


def _state(weight: Tensor) -> tuple[Any, ...]:
    """Differs when the weight moved or changed."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.dtype, weight.device, tuple(weight.shape)
