"""Bytes of all tensors alive at once while something runs, counted from outside: no allocator is asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):
    """Looks at the operands and results of every operation, and counts each storage once for as long as it lives.

    Workspaces within an operation are not seen. Storages of ``besides`` (weights) and of other devices do not count.
    """

    def __init__(self, besides: Iterable[Tensor] = (), device: str = "cpu") -> None:
        super().__init__()
        self._device, self.peak = device, 0
        self._apart = {t.untyped_storage()._cdata for t in besides}
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in (*tree_leaves(args), *tree_leaves(kwargs or {}), *tree_leaves(result)):
            if isinstance(leaf, Tensor) and leaf.device.type == self._device:
                storage = leaf.untyped_storage()
                if storage._cdata not in self._apart:
                    self._seen[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._seen = {key: (ref, size) for key, (ref, size) in self._seen.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._seen.values()))
        return result
