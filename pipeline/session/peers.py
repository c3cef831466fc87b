"""The ranks that a session computes with: they make the same calls in the same order. Here they are processes.

What they must agree on before they compute is agreed on here. What they compute goes through the engine's exchange.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, shape_of_rows
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.run.empty_run import META, EmptyExchange, Skipped, no_numbers
from tvae.pipeline.engine.run.exchange import Exchange
from tvae.pipeline.engine.run.nccl_exchange import exchange_of
from tvae.pipeline.engine.run.swap_rows import PartOfRows, swap_rows, widened
from tvae.pipeline.errors import PlanError, TvaeError, UsageError
from tvae.pipeline.session.choose_plan import Room
from tvae.pipeline.session.failed_call import FailedCall
from tvae.pipeline.session.input_sums import Start, SumsLater, sums_of
from tvae.pipeline.session.smaller_groups import check_member, known_groups, smaller_group
from tvae.pipeline.session.words import Words

__all__ = ["Peers", "Told", "same_call"]

_UNKNOWN = 1 << 62
"""Bytes of memory of which nothing is known."""
_FAILED = -(1 << 62)
_FACTS, _INPUT = ("VAE", "call", "input size"), "input"


class Peers:
    """See the module's docstring.

    group: of processes, as PyTorch has them; every one of them makes a ``Peers``. gather: does every rank want the
    whole result? Otherwise each has its own rows of it. must_share: refuse what no two ranks can share, which each of
    them would compute alone. first_only: of what is whole only the first rank wants any, and the others compute nothing
    that is not shared.
    """

    first_only = False
    _group_number = _passed = 0
    _all: Exchange
    _fewer: dict[int, Exchange | None]
    _words: Words
    failed: FailedCall
    """What becomes of this rank's failures."""

    def __init__(
        self, group: dist.ProcessGroup, *, gather: bool = True, must_share: bool = False, first_only: bool = False
    ) -> None:
        self.gather, self.must_share, self.first_only, self._group = gather, must_share, first_only, group
        check_member(group)
        self._all = exchange_of(group)
        self._on_host = "cpu:" in dist.get_backend_config(group)
        self.rank, self.count = self._all.rank, self._all.ranks
        self._fewer = {self.count: self._all}
        self._words = Words(group, self._all, on_host=self._on_host)
        self.failed = FailedCall(self._words, told_at_end=self._on_host)
        self._models: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._numbers_of_models = itertools.count()

    def call(self, *, of_all: bool = True) -> AbstractContextManager[None]:
        """See ``FailedCall``. Raises UsageError where the group was destroyed."""
        check_member(self._group)
        return self.failed.call(of_all=of_all)

    def meet(self, count: int) -> None:
        """Before the first so many ranks compute without the others, which call it, too."""
        if count not in self._fewer:
            number = max(most for (most,) in self._numbers([max(known_groups(), self._group_number + 1)]))
            group, self._group_number = smaller_group(self._group, range(count), number), number
            self._fewer[count] = None if group is None else exchange_of(group)

    def exchange(self, count: int) -> Exchange | None:
        """Between the first so many ranks, which have met; None for the others, which have no rows."""
        return self._fewer[count]

    def least(self, found: Callable[[], Room]) -> Room:
        """Of each number the least that any rank finds; None where nobody knows one. Raises what ``found`` raises, and
        on the other ranks an error of that kind: they may go on with another plan, and so all do."""
        try:
            numbers = found()
        except TvaeError as error:
            self._numbers([_FAILED, isinstance(error, PlanError)])
            raise
        every = self._numbers([_UNKNOWN if n is None else n for n in numbers])
        if wrong := [(rank, its[1]) for rank, its in enumerate(every) if its[0] == _FAILED]:
            raise self._why_failed(*wrong[0])
        device, host = (None if n == _UNKNOWN else n for n in map(min, zip(*every, strict=True)))
        return device, host

    def check_alike(self, facts: Sequence[tuple[str, object]]) -> None:
        """Are these facts (name, what it is) the same on all ranks? Raises UsageError on all where they are not."""
        self._compare([name for name, _ in facts], _digests([what for _, what in facts]))

    def check_call(
        self, model: object, call: object, inputs: Sequence[Tensor], start: Start
    ) -> tuple[Callable[[], object], Callable[[Sequence[int]], list[list[int]]] | None]:
        """See ``same_call``. Tells the others, and gives what waits for their word; and what compares inputs, and what
        every rank says besides, None where inputs are compared with the rest."""
        self.failed.begin()
        number = self._models.get(model)
        if number is None:
            number = self._models[model] = next(self._numbers_of_models)
        facts = _digests_of_call(repr(number), repr(call), repr([tuple(x.shape) for x in inputs]))
        if self._on_host:
            said, sums_later = self._said_later(facts), list[SumsLater]()
            with self.failed.kept():  # the others have been told of the call
                sums_later.append(SumsLater(inputs, start))
            return lambda: self._check(_FACTS, said()), lambda more: self._compare(
                [_INPUT], _joined(sums_later[0](), more)
            )
        sums = sums_of(inputs)  # they stay on their device: a rank waits once, for what all have said
        said = self._said_later(torch.cat([facts.to(sums.device), sums]))
        return lambda: self._check([*_FACTS, _INPUT], said()), None

    def whole(
        self, part: Tensor, axis: Axis, own: Sequence[Rows], *, channels_last: bool, everywhere: bool = False
    ) -> Tensor:
        """A value of which each rank has its own rows, on every rank that wants results, or everywhere; on others their
        own rows."""
        held = [(0, axis.rows)] * len(own) if everywhere else self._held(own, axis.rows)

        def swapped(peers: Peers, part: Tensor) -> Tensor:
            buffer = widened(part, axis, own[peers.rank], held[peers.rank], channels_last=channels_last)
            whole = PartOfRows(buffer, axis, held[peers.rank][0], own, held)
            swap_rows(peers._all, [whole], channels_last=channels_last)
            return buffer

        return self._answered(part.device, lambda: swapped(self, part), lambda peers: swapped(peers, part.to(META)))

    def from_first(
        self, value: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A whole value that the first rank has, on every rank."""

        def given(peers: Peers, value: Tensor | None, device: torch.device) -> Tensor:
            found = torch.empty(shape, dtype=dtype, device=device) if value is None else value.contiguous()
            peers._all.broadcast(found)
            return found

        return self._answered(device, lambda: given(self, value, device), lambda peers: given(peers, None, META))

    def messages(self) -> int:
        """How many have been on their way."""
        return self._passed + sum(getattr(exchange, "count", 0) for exchange in self._fewer.values())

    def pass_on(self, more: int) -> None:
        """So many were on their way that no exchange has counted, or so many fewer than were counted."""
        self._passed += more

    def empty(self, device: torch.device, before: int) -> Peers:
        """These, with which nothing but the messages of a call is passed on, those since ``before`` left out; for
        tensors of the ``meta`` device. device: this rank's."""
        found, skipped = copy(self), Skipped(self.messages() - before)
        found._fewer = {n: each and EmptyExchange(each, device, skipped) for n, each in self._fewer.items()}
        found._all = EmptyExchange(self._all, device, skipped)
        found.failed = FailedCall(self._words, told_at_end=False)
        return found

    def _answered(self, device: torch.device, do: Callable[[], Tensor], without: Callable[[Peers], Tensor]) -> Tensor:
        """What ``do`` gives. Where this rank has failed, or fails in it, ``without`` sends what the others wait for,
        and gives the shape of a result without numbers."""
        before = self.messages()
        if self.failed.error is None:
            with self.failed.kept():
                return do()
        return no_numbers(without(self.empty(device, before)), device)

    def nothing(self, shape: Sequence[int], axis: Axis, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The rows of a rank that has none."""
        return torch.empty(shape_of_rows(shape, axis, 0), dtype=dtype, device=device)

    def _why_failed(self, rank: int, by_plan: int) -> TvaeError:
        return (PlanError if by_plan else UsageError)(f"rank {rank} cannot take part; its own message says why")

    def _held(self, own: Sequence[Rows], rows: int) -> list[Rows]:
        """The rows that each rank is to have of a result."""
        return [(0, rows), *own[1:]] if self.first_only else [(0, rows)] * len(own)

    def _compare(self, names: Sequence[str], mine: Tensor) -> list[list[int]]:
        """names: of the first numbers, which must be alike. Returns those of all ranks."""
        return self._check(names, self._said_later(mine)())

    def _check(self, names: Sequence[str], every: list[list[int]]) -> list[list[int]]:
        for rank, its in enumerate(every):
            other = [name for name, a, b in zip(names, its, every[0], strict=False) if a != b]
            if other:
                raise UsageError(f"rank {rank} has another {other[0]} than rank 0: all ranks make the same calls")
        return every

    def _numbers(self, mine: Sequence[int]) -> list[list[int]]:
        """Those of every rank."""
        return self._said_later(torch.tensor(mine, dtype=torch.int64, device="cpu"))()

    def _said_later(self, mine: Tensor) -> Callable[[], list[list[int]]]:
        """Tells the others now; what it gives waits for their numbers."""
        return self.failed.uninterrupted(self._words.tell(mine))


@dataclass
class Told:
    """What ranks tell each other of a call: changed: the model, since the session that has computed was made; recorded:
    the run, so that the next one is a replay; weights: a digest of those that it has used. The others' is known when
    the call is over.

    agree: waits for what the others call, and raises UsageError where that is something else. Nothing that ranks share
    begins before it.
    """

    agree: Callable[[], object]
    changed: bool = False
    recorded: bool = False
    weights: int = 0
    changed_somewhere: bool = False
    recorded_everywhere: bool = False
    weights_of_all: tuple[int, ...] = ()


@contextmanager
def same_call(
    peers: Peers | None, model: object, call: object, inputs: Sequence[Tensor], start: Start
) -> Iterator[Told]:
    """Around a call: do all ranks make the same one? Raises UsageError on all where they do not. model: another object
    when anything about the VAE has changed but the values of its weights. start: the call's.

    Inputs are compared by checksums: once the device has its work, or before where the group has no way for numbers on
    CPUs; then nothing else is told.
    """
    if peers is None:
        yield Told(lambda: None)
        return
    agree, compare_inputs = peers.check_call(model, call, inputs, start)
    told = Told(agree)
    yield told
    peers.failed.end()
    if compare_inputs is not None:
        every = compare_inputs([told.changed, told.recorded, told.weights])
        _, changed, recorded, told.weights_of_all = zip(*every, strict=True)
        told.changed_somewhere, told.recorded_everywhere = any(changed), all(recorded)
    peers.failed.over()


def _joined(sums: Tensor, more: Sequence[int]) -> Tensor:
    return torch.cat([sums, torch.tensor([*more], dtype=torch.int64, device="cpu")])


def _digests(facts: Sequence[object]) -> Tensor:
    """[facts] int64 on the CPU."""
    return _digests_of_texts(map(repr, facts))


@lru_cache(64)  # the texts are short
def _digests_of_call(*texts: str) -> Tensor:
    return _digests_of_texts(texts)


def _digests_of_texts(texts: Iterable[str]) -> Tensor:
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
    numbers = [int.from_bytes(digest, "little", signed=True) for digest in digests]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")
