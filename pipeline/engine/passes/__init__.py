"""Graph -> Graph rewrites, one file a kind of operation. The plain path needs none but ``functionalise``."""

from collections.abc import Callable
from functools import partial

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.attention import fuse_nearest_code, use_wide_attention
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.clean_up import drop_casts, remove_identities
from tvae.pipeline.engine.passes.convolutions import (
    fuse_conv_add,
    fuse_conv_stats,
    fuse_narrow_conv,
    fuse_strided_conv,
    leave_out_zero_frames,
    leave_zeros_to_convolutions,
)
from tvae.pipeline.engine.passes.functionalise import functionalise
from tvae.pipeline.engine.passes.norms import (
    fuse_norm_act,
    fuse_norm_pad,
    fuse_residual,
    fuse_rms_norm,
    join_earlier_frames,
)
from tvae.pipeline.engine.passes.rewriter import remove_unused
from tvae.pipeline.engine.passes.upsampling import fuse_enlarge_conv, fuse_shuffle_up, fuse_upsample_conv

__all__ = ["functionalise", "optimise", "remove_identities", "remove_unused", "simplify"]


def simplify(graph: Graph) -> Graph:
    """Make a captured graph one that the rules can lower, in fewer nodes."""
    return remove_identities(functionalise(graph))


def optimise(
    graph: Graph,
    *,
    subpixel: bool,
    bias: bool,
    narrow: bool = False,
    epilogue: bool = False,
    summed: Callable[[str, int, int, int], bool] | None = None,
) -> Graph:
    """Compute the same function in fewer operations and fewer passes over memory.

    Args:
        subpixel: run upsampling convolutions at low resolution. In bfloat16 and float16 the summed weights are rounded
            once more, which the model's error affords only where fused normalisation saves a rounding.
        bias: take biases out of convolutions that would add them in a pass of their own.
        narrow: use the kernels for convolutions of few channels.
        epilogue: let convolutions add in their epilogue what is added to their result.
        summed: tells for (operation, channels out, channels in, kernel) whether a kernel takes the statistics of a
            convolution's result, too.
    """
    for rewrite in (drop_casts, leave_zeros_to_convolutions, leave_out_zero_frames, fuse_nearest_code):
        graph = rewrite(graph)
    if subpixel:
        graph = fuse_upsample_conv(graph)
    for rewrite in (use_wide_attention, fuse_norm_act, fuse_rms_norm, fuse_shuffle_up, fuse_residual):
        graph = rewrite(graph)
    if narrow:
        graph = fuse_narrow_conv(graph)
    if bias:
        graph = move_bias(graph)
    if epilogue:
        graph = fuse_conv_add(graph)
    if summed is not None:
        graph = fuse_conv_stats(graph, partial(summed, "conv_add"))
        graph = fuse_strided_conv(graph, partial(summed, "down_conv"))
        graph = fuse_enlarge_conv(graph, partial(summed, "enlarge_conv"))
    return remove_unused(fuse_norm_pad(join_earlier_frames(graph)))
