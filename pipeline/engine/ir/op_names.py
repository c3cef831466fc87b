"""What the convolutions among a graph's operations are called. Of each the bias is the third argument."""

__all__ = ["CONVOLUTIONS"]

CONVOLUTIONS = (
    *("conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
"""Their results are new memory, not views of something else."""
