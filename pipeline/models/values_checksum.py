"""Checksums of a VAE's values: one VAE in two files, in two layouts or in two types, is known as one.

Values are hashed under the module's names: as float32, and rounded to each narrower type. A copy in float16 gives the
checksum that its original gives when it is rounded to float16, and nothing is lost when it is rounded, which a mark
says. Without the mark on either side two VAEs are only near each other. Copies in two narrow types (float16 and
bfloat16) do not tell that they have one original.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tvae.pipeline.models.layout import OLD_ATTENTION

__all__ = ["ROUNDED", "values_checksums"]

_SMALL = 1 << 12
"""Values of a tensor that is hashed before another thread has begun."""
ROUNDED = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def values_checksums(weights: Iterable[tuple[str, Tensor]]) -> tuple[str, ...]:
    """Of named tensors on the CPU, in the order of their names: 32 hex digits of the values in float32, then of those
    in each type of ``ROUNDED``, with ``=`` after them where that type loses nothing. Whole numbers (counters) do not
    count, nor do ones at the end of a shape."""
    kinds = (torch.float32, *ROUNDED)
    found = [hashlib.sha256() for _ in kinds]
    exact = [True for _ in kinds]

    def add(at: int, label: bytes, wide: Tensor) -> None:
        rounded = wide.to(kinds[at])
        exact[at] = exact[at] and torch.equal(rounded.float(), wide)
        found[at].update(label)
        found[at].update(rounded.reshape(-1).view(torch.uint8).numpy().data)

    with ThreadPoolExecutor(len(kinds)) as pool:  # hashing lets other threads run
        for name, value in weights:
            if not value.is_floating_point():
                continue
            for pattern, new in OLD_ATTENTION:
                name = re.sub(pattern, new, name)
            shape = [*value.shape]
            while shape and shape[-1] == 1:
                shape.pop()
            label, wide = json.dumps([name, shape]).encode(), value.float().contiguous()
            if wide.numel() < _SMALL:
                for at in range(len(kinds)):
                    add(at, label, wide)
                continue
            for done in [pool.submit(add, at, label, wide) for at in range(len(kinds))]:
                done.result()
    lossless = ["", *("=" if one else "" for one in exact[1:])]
    return tuple(one.hexdigest()[:32] + mark for one, mark in zip(found, lossless, strict=True))
