"""Tensors as Hopper's copies of boxes see them: descriptors that the driver makes and a kernel takes as arguments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tvae.kernels.registry import Unsupported

__all__ = ["boxes"]


@lru_cache(maxsize=4096)
def boxes(
    address: int, dtype: torch.dtype, sizes: tuple[int, ...], steps: tuple[int, ...], box: tuple[int, ...]
) -> Any:
    """The descriptor of a tensor at this address in boxes of these sizes, innermost dimension first.

    steps: bytes between neighbours along all dimensions but the innermost, whose elements lie side by side. A box is
    128 bytes wide, and swizzled in shared memory. Raises Unsupported where the driver refuses it.
    """
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
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
