"""Tensors as Hopper's copies of boxes see them: descriptors that the driver makes and a kernel takes as arguments."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from tvae.kernels.registry import Unsupported

__all__ = ["Boxes", "boxes_of"]

_BYTES = 128
"""Of a descriptor."""
_MOST = 1 << 8
"""Descriptors of one layout that are kept: a run asks for those of the run before again."""


class Boxes:
    """Tensors of one layout in boxes, innermost dimension first.

    steps: bytes between neighbours along all dimensions but the innermost, whose elements lie side by side. A box is
    128 bytes wide, and swizzled in shared memory.
    """

    def __init__(
        self, dtype: torch.dtype, sizes: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...]
    ) -> None:
        self.layout = dtype, sizes, steps, box
        self._made: dict[int, Any] = {}

    def at(self, address: int) -> Any:
        """The descriptor of the tensor that lies there. Raises Unsupported where the driver refuses it."""
        found = self._made.get(address)
        if found is None:
            like = next(iter(self._made.values()), None)
            if len(self._made) >= _MOST:
                self._made = {}
            found = self._made[address] = (None if like is None else _moved(like, address)) or self._encoded(address)
        return found

    def _encoded(self, address: int) -> Any:
        from cuda.bindings import driver

        (dtype, sizes, steps, box), kinds = self.layout, driver.CUtensorMapDataType
        kind = {
            torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        }[dtype]
        error, made = driver.cuTensorMapEncodeTiled(
            kind,
            len(sizes),
            address,
            [driver.cuuint64_t(n) for n in sizes],
            [driver.cuuint64_t(n) for n in steps],
            [driver.cuuint32_t(n) for n in box],
            [driver.cuuint32_t(1)] * len(sizes),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise Unsupported(f"no descriptor of {sizes}: {error.name}")
        return made


@lru_cache(maxsize=1 << 12)
def boxes_of(dtype: torch.dtype, sizes: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...]) -> Boxes:
    """The same object for the same layout."""
    return Boxes(dtype, sizes, steps, box)


def _moved(like: Any, address: int) -> Any:
    """The descriptor of a tensor like another one, made from that, which takes Python less; None where the driver says
    no."""
    from cuda.bindings import driver

    made = driver.CUtensorMap()
    ctypes.memmove(made.getPtr(), like.getPtr(), _BYTES)
    (error,) = driver.cuTensorMapReplaceAddress(made, address)
    return made if error == driver.CUresult.CUDA_SUCCESS else None
