"""The fused operations. Level 1 (``native``) is the definition of each result; faster levels are judged against it.

Which operation has which level (``+``), and why a level is left out:

================  ======  ======  =======  ======  ====
operation         native  script  compile  triton  cuda
================  ======  ======  =======  ======  ====
group_stats       +       a       +        +       +
finish_stats      +       a       +        +       d
norm_act          +       +       +        +       +
add_stats         +       +       +        +       +
rms_norm_act      +       +       +        +       d
pad               +       f       f        +       d
enlarge           +       f       f        +       d
conv3d            +       b       b        b       +
conv_add          +       b       b        +       +
enlarge_conv      +       b       b        +       +
conv_from_few     +       b       b        +       d
conv_to_few       +       b       b        +       d
wide_attention    +       b       b        +       d
sample            +       c       c        c       c
frames_to_tensor  +       e       e        e       e
tensor_to_frames  +       e       e        e       e
================  ======  ======  =======  ======  ====

- a: TorchScript's fuser takes no reductions. Of ``add_stats`` and ``rms_norm_act`` it fuses what follows or precedes
  the reduction.
- b: it would call the very attention or convolution that the definition calls.
- c: one ``addcmul`` is one pass already.
- d: Triton's pass is bound by memory or by matrix products; CUDA C++ could move no byte less.
- f: what they could fuse is a copy; its order in memory is what counts, and that the fusers choose for themselves.
- e: some bytes a pixel, once for each picture, where the model moves thousands. The bits must be alike everywhere, and
  fused code divides approximately.
"""

from tvae.kernels.registry import LEVELS, OPERATIONS, Kernels, Unsupported, implementation, why_absent, why_missing

__all__ = ["LEVELS", "OPERATIONS", "Kernels", "Unsupported", "implementation", "why_absent", "why_missing"]
