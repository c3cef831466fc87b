"""Rows of buffers on their way between ranks: cut out, sent, received and put in place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop, place, rows_of, shape_of_rows
from tvae.pipeline.engine.ir.layout import copy_all_into, copy_into, memory_format
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.shard import travels
from tvae.pipeline.engine.run.exchange import Exchange, Message

__all__ = ["PartOfRows", "arrived", "as_message", "room_for", "swap", "swap_rows", "widened"]

_FEW_BYTES = 4 << 20
"""Of rows that are copied to be in one piece: with so many, one message less is nothing beside them."""
_STEP = 16
"""Bytes that the rows of a buffer begin at multiples of, in a message that has those of several."""


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


class _Travelling(NamedTuple):
    """Rows [lo, hi) of a buffer, on their way out or in."""

    buffer: PartOfRows
    lo: int
    hi: int

    @property
    def shape(self) -> list[int]:
        return shape_of_rows(self.buffer.value.shape, self.buffer.axis, self.hi - self.lo)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.buffer.value.element_size()

    def go_along(self, channels_last: bool) -> bool:
        """Are they of several frames, and not many bytes? Sender and receiver must find the same: it is a matter of
        shapes, since their buffers may lie otherwise."""
        shape, dim = self.shape, self.buffer.axis.dim
        before = shape[:dim] if not channels_last or len(shape) not in (4, 5) else [shape[0], *shape[2:dim]]
        return self.nbytes <= _FEW_BYTES and self.buffer.axis.outer * math.prod(before) > 1

    def rows(self) -> Tensor:
        return self.buffer.rows(self.lo, self.hi)

    def put(self, rows: Tensor) -> None:
        first = self.buffer.first
        place(self.buffer.value, self.buffer.axis, self.lo - first, self.hi - first, rows)


def swap_rows(exchange: Exchange, buffers: Iterable[PartOfRows], *, channels_last: bool) -> None:
    """Fill the rows that other ranks own. channels_last: the layout of maps; the same on all ranks.

    A message takes its time however small it is. So the rows of several frames, which are copied in any case, travel
    together: one message to each rank has those of all buffers.
    """
    sends: list[Message] = []
    receives: list[Message] = []
    apart: list[tuple[_Travelling, Tensor]] = []
    leaving: dict[int, list[_Travelling]] = {}
    coming: dict[int, list[_Travelling]] = {}
    for buffer in buffers:
        out, into = travels(buffer.own, buffer.held, exchange.rank)
        for peer, lo, hi in out:
            if (one := _Travelling(buffer, lo, hi)).go_along(channels_last):
                leaving.setdefault(peer, []).append(one)
            else:
                sends.append((peer, as_message(one.rows(), channels_last)))
        for peer, lo, hi in into:
            if (one := _Travelling(buffer, lo, hi)).go_along(channels_last):
                coming.setdefault(peer, []).append(one)
                continue
            rows = _turned(one.rows(), channels_last)
            if buffer.axis.outer != 1 or not rows.is_contiguous():  # not a part of the buffer in one piece
                rows = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
                apart.append((one, rows))
            receives.append((peer, rows))
    for peer, several in leaving.items():
        message, parts = _room_for_all(several, channels_last)
        copy_all_into((arrived(part, channels_last), one.rows()) for one, part in zip(several, parts, strict=True))
        sends.append((peer, message))
    for peer, several in coming.items():
        message, parts = _room_for_all(several, channels_last)
        apart += zip(several, parts, strict=True)
        receives.append((peer, message))
    swap(exchange, sends, receives)
    views = [(one, arrived(rows, channels_last)) for one, rows in apart]
    copy_all_into((one.rows(), rows) for one, rows in views if one.buffer.axis.outer == 1)
    for one, rows in views:
        if one.buffer.axis.outer != 1:
            one.put(rows)


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
    copy_into(arrived(message, channels_last), rows)
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


def _room_for_all(several: Sequence[_Travelling], channels_last: bool) -> tuple[Tensor, list[Tensor]]:
    """Memory for a message with all of them, one after the other, and their places in it."""
    values = [one.buffer.value for one in several]
    sizes = [-(-one.nbytes // _STEP) * _STEP for one in several]
    message = torch.empty(sum(sizes), dtype=torch.uint8, device=values[0].device)
    parts = []
    for one, value, piece in zip(several, values, message.split(sizes), strict=True):
        shape = _turned(torch.empty(one.shape, device="meta"), channels_last).shape
        parts.append(piece[: one.nbytes].view(value.dtype).view(shape))
    return message, parts


def _turned(rows: Tensor, channels_last: bool) -> Tensor:
    return rows.movedim(1, -1) if channels_last and rows.ndim in (4, 5) else rows
