"""PyTorch's functions as they are, whatever somebody has put in their place in ``torch.nn.functional``.

What takes their place there (other attention, for all models of a process) is captured as a part of the model. Called
from here as well, it would be applied twice.
"""

from __future__ import annotations

from torch._C._nn import linear, scaled_dot_product_attention, silu_
from torch.nn.functional import interpolate, pad

__all__ = ["interpolate", "linear", "pad", "scaled_dot_product_attention", "silu_"]
