"""Rows of buffers on their way between ranks: cut out, sent, received and put in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, place, rows_of, shape_of_rows
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.wide_copy import copied
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.shard import travels
from tvae.pipeline.engine.run.exchange import Exchange, Message

__all__ = ["PartOfRows", "arrived", "as_message", "room_for", "swap", "swap_rows", "widened"]


@dataclass(frozen=True)
class PartOfRows:
    """A buffer that holds some rows of a value, the first of them ``first``. own, held: the rows that each rank owns,
    and those that it is to hold."""

    value: Tensor
    axis: Axis
    first: int
    own: Sequence[Rows]
    held: Sequence[Rows]

    def rows(self, lo: int, hi: int) -> Tensor:
        """Rows [lo, hi) of the value."""
        return crop(self.value, self.axis, lo - self.first, hi - self.first)


def swap_rows(exchange: Exchange, buffers: Iterable[PartOfRows], *, channels_last: bool) -> None:
    """Fill the rows that other ranks own. channels_last: the layout of maps; the same on all ranks."""
    sends: list[Message] = []
    receives: list[Message] = []
    apart: list[tuple[PartOfRows, int, int, Tensor]] = []
    for buffer in buffers:
        out, into = travels(buffer.own, buffer.held, exchange.rank)
        sends += [(peer, as_message(buffer.rows(lo, hi), channels_last)) for peer, lo, hi in out]
        for peer, lo, hi in into:
            rows = _turned(buffer.rows(lo, hi), channels_last)
            if buffer.axis.outer != 1 or not rows.is_contiguous():  # not a part of the buffer in one piece
                rows = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
                apart.append((buffer, lo, hi, rows))
            receives.append((peer, rows))
    swap(exchange, sends, receives)
    for buffer, lo, hi, rows in apart:
        place(buffer.value, buffer.axis, lo - buffer.first, hi - buffer.first, arrived(rows, channels_last))


def swap(exchange: Exchange, sends: Iterable[Message], receives: Iterable[Message]) -> None:
    """Send and receive what has any element."""
    some = [[(peer, rows) for peer, rows in messages if rows.numel()] for messages in (sends, receives)]
    if any(some):
        exchange.swap(*some)


def as_message(rows: Tensor, channels_last: bool) -> Tensor:
    """Rows in one piece, in the order of elements that all ranks know: without a copy where they lie so."""
    turned = _turned(rows, channels_last)
    if turned.is_contiguous():
        return turned
    message = torch.empty(turned.shape, dtype=rows.dtype, device=rows.device)
    copied(arrived(message, channels_last), rows)
    return message


def room_for(shape: Sequence[int], like: Tensor, channels_last: bool) -> Tensor:
    """Memory for a message with rows of this shape."""
    turned = _turned(torch.empty(shape, device="meta"), channels_last)
    return torch.empty(turned.shape, dtype=like.dtype, device=like.device)


def arrived(message: Tensor, channels_last: bool) -> Tensor:
    """The rows of a message."""
    return message.movedim(-1, 1) if channels_last and message.ndim in (4, 5) else message


def widened(value: Tensor, axis: Axis, rows: Rows, room: Rows, *, channels_last: bool) -> Tensor:
    """These rows of a value, in a buffer with room for more. value: those rows, or that buffer."""
    if rows_of(value.shape, axis) == room[1] - room[0]:
        return value
    shape = shape_of_rows(value.shape, axis, room[1] - room[0])
    layout = memory_format(value.ndim, channels_last)
    buffer = torch.empty(shape, dtype=value.dtype, device=value.device, memory_format=layout)
    if rows[0] < rows[1]:
        place(buffer, axis, rows[0] - room[0], rows[1] - room[0], value)
    return buffer


def _turned(rows: Tensor, channels_last: bool) -> Tensor:
    return rows.movedim(1, -1) if channels_last and rows.ndim in (4, 5) else rows
