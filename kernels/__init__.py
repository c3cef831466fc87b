"""The fused operations. Level 1 (``native``) is the definition of each result; faster levels are judged against it."""

from tvae.kernels.native import Stats, group_stats, merge_stats, norm_affine

__all__ = ["Stats", "group_stats", "merge_stats", "norm_affine"]
