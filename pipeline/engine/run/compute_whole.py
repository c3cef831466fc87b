"""Whole values: what a segment computes before its strips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from tvae.pipeline.engine.ir.program import Op, Read

__all__ = ["compute_whole"]

_LARGE = 1 << 20
"""Bytes of a value that is announced as a strip is: models that loop over rows have thousands of small ones."""


def compute_whole(
    ops: Sequence[Op],
    whole: Iterable[int],
    ends: Mapping[int, Sequence[int]],
    store: dict[int, Tensor],
    read: Read,
    announce: Callable[[], None],
) -> None:
    """Put those into ``store`` that are not there (what depends on the weights alone may be given).

    ends: the values whose last use each is; they go. announce: called before each large one.
    """
    for id_ in whole:
        if id_ not in store:
            if ops[id_].bytes >= _LARGE:
                announce()
            store[id_] = ops[id_].run(read, 0, 0)
        for i in ends.get(id_, ()):
            store.pop(i, None)
