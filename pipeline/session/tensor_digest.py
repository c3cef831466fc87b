"""A digest of a tensor's values: of constants that are compared with those of another capture or call."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["tensor_digest"]


def tensor_digest(value: Tensor) -> str:
    """sha256 (hex) of its bytes in the order of its dimensions, however they lie and wherever they are."""
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
