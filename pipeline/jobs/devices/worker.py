"""The process of a device: ``python -m tvae.pipeline.jobs.devices``.

It is told on stdin what to do, and answers on stdout (see ``messages``). When stdin ends before all is done, it ends
as a run does that Ctrl-C interrupts: what is being written is finished, the rest is dropped.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import IO, TYPE_CHECKING, Any

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.bell import join
from tvae.pipeline.files.leftovers import remove_leftovers
from tvae.pipeline.jobs.context import context_for
from tvae.pipeline.jobs.devices.alive import Watch
from tvae.pipeline.jobs.devices.enough import Enough
from tvae.pipeline.jobs.devices.given import GivenItems, GrantedClaims
from tvae.pipeline.jobs.devices.messages import (
    Alive,
    Begin,
    Claim,
    ClaimAnswer,
    Ended,
    Failed,
    Finished,
    Give,
    Ordered,
    Raised,
    Ranks,
    Ready,
    Told,
    Took,
    Worked,
    receive,
    send,
)
from tvae.pipeline.jobs.devices.passed_log import pass_log
from tvae.pipeline.jobs.operations import operation_for
from tvae.pipeline.jobs.outcome import Finished as ItemFinished
from tvae.pipeline.jobs.outcome import Outcome, failure, is_fault
from tvae.pipeline.jobs.outputs import Item, results_folder, writing_into
from tvae.pipeline.jobs.remote.operation import Uploading
from tvae.pipeline.jobs.remote.run import placed, with_urls
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.jobs.vaes import Vaes
from tvae.pipeline.media.sandbox import Sandbox
from tvae.pipeline.settings.collector import collects_less, work_begins
from tvae.pipeline.settings.crashes import tells_of_crashes

if TYPE_CHECKING:
    from tvae.pipeline.jobs.devices.following import Following
    from tvae.pipeline.session.model import Model

__all__ = ["main"]

WORKED_SECONDS = 1.0
"""After which the run is told again how busy the device is, as soon as an item ends."""
_LATER = 60.0
"""Seconds after which a process ends that was told to end and cannot."""


def main() -> None:
    """Until everything is done, or stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    tells_of_crashes()
    collects_less()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        _Worker(sys.stdin.buffer, answers).work()
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        os._exit(130)  # there is nobody to tell, and nothing to wait for


class _DeviceLostError(Exception):
    """The device does nothing more, whatever it is asked."""


class _Worker:
    def __init__(self, orders: IO[bytes], answers: IO[bytes]) -> None:
        self._orders, self._answers = orders, answers
        self._sending = threading.Lock()
        self._items, self._claims, self._enough = GivenItems(self._took), GrantedClaims(self._ask), Enough()
        self._sandbox = Sandbox("off")
        self._uploads: Uploads | None = None
        self._following: Queue[Any] = Queue()
        self._done = False

    def work(self) -> None:
        import tvae.pipeline.session.model  # noqa: F401 - takes seconds: before anybody says what is to be done

        begin: Begin = receive(self._orders)
        if begin.log_level is not None:
            pass_log(begin.log_level, self._tell)
        listener = threading.Thread(target=self._listen, name="tvae-listens", daemon=True)
        watch = Watch(lambda: self._tell(Alive()))
        listener.start()
        if begin.ranks is None:
            self._alone(begin)
        else:
            self._among_others(begin, begin.ranks)
        watch.end()
        join([listener])  # the run closes stdin
        if begin.ranks is not None:
            os._exit(0)  # Python's own end may abort where a group of processes is still held, and says so on stderr

    def _alone(self, begin: Begin) -> None:
        vaes = Vaes(begin.job)
        try:
            self._do(begin, vaes)
        except Exception as error:  # whatever it is, the run raises it
            lost = isinstance(error, _DeviceLostError) or (is_fault(error) and not _answers(vaes))
            self._tell(Failed(Raised.of(error.__cause__ or error if lost else error), lost))
            if lost:
                os._exit(1)  # to leave a device that does not answer may take for ever

    def _among_others(self, begin: Begin, ranks: Ranks) -> None:
        """One of several that share each item. What fails in the midst of that ends them all."""
        from tvae.pipeline.jobs.devices.following import Following, kind_of_shared, left, met, why_broken
        from tvae.pipeline.session.broken_group import BrokenGroup

        try:
            _choose(begin.job.device)
            peers = met(ranks, begin.job.device or "cpu")
            if ranks.rank:
                self._follow(begin, Following(begin.job, peers, self._following))
            else:
                self._do(begin, Vaes(begin.job, kind_of=kind_of_shared(peers, self._tell)))
            left()
        except BrokenGroup as broken:
            self._tell(Failed(Raised.of(why_broken(broken, begin.job.device)), lost=True))
        except Exception as error:  # whatever it is, the run raises it
            self._tell(Failed(Raised.of(error)))

    def _follow(self, begin: Begin, following: Following) -> None:
        following.vaes.check()
        if begin.job.operation == "decode" and begin.job.vae is None:
            self._tell(Ready(None, None, None))
        else:
            self._ready(following.vaes.get(begin.job.vae or "builtin"))
        following.run(self._tell)
        self._tell(Finished(0, {}))

    def _ready(self, opened: Model) -> None:
        from tvae.pipeline.models.published import published_name

        dtype = str(opened.dtype).removeprefix("torch.")
        digest = opened.info.weights_sha256
        self._tell(Ready(opened.info.id, dtype, str(opened.device), digest, published_name(digest)))

    def _do(self, begin: Begin, vaes: Vaes) -> None:
        from tvae.pipeline.jobs.batches import Batches
        from tvae.pipeline.jobs.overlap import run_items
        from tvae.pipeline.models.load import BUILTIN

        _choose(begin.job.device)
        vaes.check()
        with (
            Sandbox(begin.job.sandbox) as self._sandbox,
            placed(begin.job, lambda event: self._tell(Told(event))) as (job, told_of, self._uploads),
        ):
            if self._uploads is not None:  # the folder is this process's, and an earlier one may have left something
                remove_leftovers(Path(folder) for folder, _, _ in os.walk(results_folder(job)))
                self._uploads.begin(())
            context = context_for(job, vaes, self._claims, told_of, self._sandbox, uploads=self._uploads)
            operation = operation_for(context)
            if self._uploads is not None:
                operation = Uploading(operation, self._uploads)
            if job.operation == "decode" and job.vae is None:
                self._tell(Ready(None, None, None))
            else:
                self._ready(vaes.get(job.vae or BUILTIN))
            told = time.monotonic()

            def end(item: Item, outcome: Outcome) -> None:
                nonlocal told
                self._end(item, outcome, vaes)
                if time.monotonic() - told >= WORKED_SECONDS:
                    told = time.monotonic()
                    self._tell(Worked(context.busy.threads, context.busy.seconds))

            batches = Batches(job.batch, vaes.device.type)
            with writing_into(results_folder(job)):
                run_items(self._items, operation, context, batches, end, self._items.more)
        self._tell(Finished(context.busy.threads, context.busy.seconds))

    def _took(self, item: Item) -> None:
        self._tell(Took(item.index, threading.get_ident()))

    def _end(self, item: Item, outcome: Outcome, vaes: Vaes) -> None:
        more = self._enough.ended()
        if isinstance(outcome, ItemFinished):
            self._tell(Ended(item.index, tuple(outcome.notices), with_urls(outcome.done, self._uploads), more=more))
        elif not isinstance(outcome, Exception):
            self._tell(Ended(item.index, (), with_urls(outcome, self._uploads), more=more))
        elif is_fault(outcome) and not _answers(vaes):
            raise _DeviceLostError from outcome
        else:
            self._tell(Ended(item.index, (), with_urls(failure(item, outcome), self._uploads), more=more))

    def _listen(self) -> None:
        try:
            while True:
                order = receive(self._orders)
                if isinstance(order, Give):
                    if order.apart:
                        for item in order.items:
                            self._sandbox.distrust(item.source)
                    self._enough.given(len(order.items))
                    uploads = self._uploads
                    self._items.add(order.items if uploads is None else [*map(uploads.here, order.items)])
                elif isinstance(order, ClaimAnswer):
                    self._claims.answer(order.number, self._granted(order.answer))
                elif isinstance(order, Ordered):
                    self._following.put(order.order)
                else:
                    self._items.complete()
                    self._following.put(None)
        except (EOFError, OSError, ValueError):
            self._stop()
        except Exception as error:  # without this thread nothing else would be heard
            self._tell(Failed(Raised.of(error)))
            os._exit(1)

    def _ask(self, claim: Claim) -> None:
        self._tell(claim if self._uploads is None else replace(claim, item=self._uploads.away(claim.item)))

    def _granted(self, answer: Path | Raised) -> Path | Raised:
        return answer if self._uploads is None or isinstance(answer, Raised) else self._uploads.local(answer)

    def _stop(self) -> None:
        if self._done:
            return
        late = threading.Timer(_LATER, os._exit, (1,))
        late.daemon = True
        late.start()
        self._claims.stop()
        _thread.interrupt_main()

    def _tell(self, message: object) -> None:
        if isinstance(message, Ready):
            work_begins()
        self._done |= isinstance(message, Finished | Failed)  # before the run hears of it, which closes stdin then
        with self._sending:
            send(self._answers, message)


def _choose(name: str | None) -> None:
    """Or libraries that ask for no device would take memory of the first one."""
    if name is not None and name.startswith("cuda"):
        import torch

        with suppress(RuntimeError):  # told when the device is asked for
            torch.cuda.set_device(torch.device(name))


def _answers(vaes: Vaes) -> bool:
    """Does the device still compute? After some errors a GPU refuses everything that the process asks of it."""
    import torch

    try:
        return bool(torch.zeros(1, device=vaes.device).cpu() == 0)
    except torch.OutOfMemoryError:
        return True
    except (RuntimeError, UsageError):
        return False
