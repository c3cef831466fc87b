"""Graph -> Graph rewrites. Each is a file of its own; the plain path needs none but ``functionalise``."""

from collections.abc import Callable
from functools import partial

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.borders import fuse_norm_pad, leave_zeros_to_convolutions
from tvae.pipeline.engine.passes.casts import drop_casts
from tvae.pipeline.engine.passes.conv_add import fuse_conv_add, fuse_conv_stats
from tvae.pipeline.engine.passes.down_conv import fuse_down_conv
from tvae.pipeline.engine.passes.frames_before import join_frames_before
from tvae.pipeline.engine.passes.functionalise import functionalise
from tvae.pipeline.engine.passes.identities import remove_identities
from tvae.pipeline.engine.passes.narrow_conv import fuse_narrow_conv
from tvae.pipeline.engine.passes.nearest_code import fuse_nearest_code
from tvae.pipeline.engine.passes.norm_act import fuse_norm_act
from tvae.pipeline.engine.passes.residual import fuse_residual
from tvae.pipeline.engine.passes.rms_norm import fuse_rms_norm
from tvae.pipeline.engine.passes.shuffle_up import fuse_shuffle_up
from tvae.pipeline.engine.passes.unused import remove_unused
from tvae.pipeline.engine.passes.upsample_conv import fuse_enlarge_conv, fuse_upsample_conv
from tvae.pipeline.engine.passes.wide_attention import use_wide_attention
from tvae.pipeline.engine.passes.zero_frames import leave_out_zero_frames

__all__ = ["functionalise", "optimise", "remove_identities", "remove_unused", "simplify"]


def simplify(graph: Graph) -> Graph:
    """What makes a captured graph one that the rules can lower, in fewer nodes."""
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
    """The same function in fewer operations and fewer passes over memory.

    subpixel: upsampling convolutions at low resolution; in bfloat16 and float16 the summed weights are rounded once
    more, which the model's error affords only where fused normalisation saves a rounding. bias: take biases out of
    convolutions that would add them in a pass of their own. narrow: where a convolution of few channels has a kernel.
    epilogue: where a convolution adds in its epilogue what is added to its result. summed: for which convolutions, by
    (operation, channels out, channels in, kernel), there is a kernel that takes the statistics of its result, too.
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
        graph = fuse_down_conv(graph, partial(summed, "down_conv"))
        graph = fuse_enlarge_conv(graph, partial(summed, "enlarge_conv"))
    return remove_unused(fuse_norm_pad(join_frames_before(graph)))
