"""Which stream does what with rows that come from the host. No GPU is needed: streams are played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.run import host_storage
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.engine.run.row_record import RowRecord


class _Streams:
    """In the place of a card's: which one is current, and what was asked of the computation's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.waits = "computing", 0
        monkeypatch.setattr(torch.cuda, "stream", self._within)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self)

    @contextmanager
    def _within(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def wait_event(self, _event: object) -> None:
        self.waits += 1


class _Copying:
    """A stream that copies beside the computation."""

    def wait_stream(self, _other: object) -> None:
        pass

    def record_event(self) -> object:
        return object()


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 1, 20, 4), Axis(2, 1, 5, 4)), ((1, 4, 5, 3), Axis(2, 1, 5, 1)), ((10, 4), Axis(0, 2, 5, 1))],
)
def test_rows_are_put_together_by_the_stream_that_reads_them(
    shape: tuple[int, ...], axis: Axis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of several frames have to be copied for that: beside the computation, it took memory that was still being
    read, and gave away memory that was still being written (Cosmos in a small budget, wrong now and then)."""
    streams = _Streams(monkeypatch)
    monkeypatch.setattr(host_storage, "_stream", lambda _: _Copying())
    x = torch.randn(shape)
    host, put_by, alive = OnHost(shape, axis, x.dtype, x.device, False), list[str](), list[Any]()
    value, empty = RowRecord.value, RowRecord.empty

    def noted(self: RowRecord, record: Tensor) -> Tensor:
        put_by.append(streams.current)
        return value(self, record)

    def watched(self: RowRecord, rows: int, **where: Any) -> Tensor:
        made = empty(self, rows, **where)
        alive.append(StorageWeakRef(made.untyped_storage()))
        return made

    monkeypatch.setattr(RowRecord, "value", noted)
    monkeypatch.setattr(RowRecord, "empty", watched)
    host.keep(0, 5, x).result()
    coming = host.fetch(1, 4)
    assert not alive[-1].expired(), "it is still being written to"
    assert put_by == []
    assert torch.equal(coming.result(), crop(x, axis, 1, 4))
    assert put_by == ["computing"]
    assert streams.waits == 2
