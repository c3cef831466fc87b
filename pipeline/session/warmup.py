"""A first run on a small picture, which asks for Triton's kernels, to be built side by side (``kernels.prebuild``).

Kernels are specialised for types, channels and for numbers that 16 divides, hardly ever for a size. A picture of some
hundred pixels therefore asks for what large ones do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tvae.kernels import Kernels, why_missing
from tvae.kernels.prebuild import beside, rehearsal
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.report import explain
from tvae.pipeline.engine.plan.schedule import Schedule, schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.give_back import give_back
from tvae.pipeline.errors import TvaeError
from tvae.pipeline.memory.convolved_shapes import CONVOLUTIONS
from tvae.pipeline.session.load_libraries import load_libraries

__all__ = ["prepared", "rehearse", "small_shapes"]

_SIDES = (48, 32, 16)
"""Latent pixels, each way, the first that fits: enough keys for the kernels of wide attention; a clip's frames have
more of them."""
_LEAST_BYTES, _MOST_BYTES = 32 << 20, 2 << 30
"""Of activations, what a rehearsal may take in any case, and at most. What takes more even so (a very long clip) builds
its kernels as it goes."""
_PLAIN = 2
"""Times its plan that a rehearsal may take: kernels that are still to be built are replaced by several operations."""

_log = logging.getLogger("tvae")
Shapes = Sequence[tuple[int, ...]]


@contextmanager
def prepared(kernels: Kernels, dtype: torch.dtype, device: torch.device, dims: int = 2) -> Iterator[None]:
    """Meanwhile other threads load the levels of a GPU's kernels, build what serves every model, and compute something
    in ``dims`` dimensions for the first time, unless something was."""
    if device.type == "cuda":
        beside(partial(load_libraries, dtype, device, dims))
    if device.type != "cuda" or not kernels.rehearsable:
        yield
        return
    index = torch.cuda.current_device() if device.index is None else device.index

    def prepare() -> None:
        try:
            kernels.prepare(dtype, index)
        except Exception:  # whatever it is, the run meets it, too, and falls back to a lower level
            _log.debug("not prepared", exc_info=True)

    other = threading.Thread(target=prepare, name="tvae-prepare", daemon=True)
    other.start()
    try:
        yield
    finally:
        other.join()


def rehearse(
    graph: Graph, plan: Schedule, weights: Mapping[str, Tensor], kernels: Kernels, *, channels_last: bool
) -> None:
    """Build the kernels that a run of this graph by this plan will ask for, on the weights' CUDA device.

    Whatever stands in its way stands in the run's, too, which says so better.
    """
    device = next((t.device for t in weights.values()), torch.device("cpu"))
    if device.type != "cuda" or not kernels.rehearsable or why_missing("triton"):
        return
    try:
        small = _small_plan(graph, plan, kernels, device, channels_last=channels_last)
        if small is None:
            return
        ops = small.program.ops
        inputs = [torch.zeros(ops[i].shape, dtype=ops[i].dtype, device=device) for i in small.program.inputs]
        noise = torch.Generator(device)  # its own: the numbers that the caller's would give are the run's
        with torch.cuda.device(device), _Unconvolved(), rehearsal() as builds:
            _ask_for_attention(small.program, device)
            execute(small, inputs, weights, noise, channels_last=channels_last)
    except (RuntimeError, TvaeError):  # see above
        _log.debug("no rehearsal", exc_info=True)
    else:
        _log.debug("%d kernels asked for ahead", len(builds))
    give_back()


def _ask_for_attention(program: Program, device: torch.device) -> None:
    """Before all else: its kernels take longest to build, and a run comes to them early."""
    ops, asked = program.ops, set()

    def read(id_: int, _first: int | None = None, _last: int | None = None) -> Tensor:
        return torch.zeros(ops[id_].shape, dtype=ops[id_].dtype, device=device)

    for op in ops:
        shapes = tuple(ops[i].shape for i in op.inputs)
        if op.name == "wide_attention" and op.axis is not None and shapes not in asked:
            asked.add(shapes)
            op.run(read, 0, op.axis.rows)


def _small_plan(
    graph: Graph, large: Schedule, kernels: Kernels, device: torch.device, *, channels_last: bool
) -> Schedule | None:
    """In strips where the large one has strips: they are written into buffers, by other kernels than whole values.

    Of a size that takes no more memory beside the large one's inputs than the large run will.
    """
    ops, whole = large.program.ops, all(segment.single for segment in large.segments)
    given = sum(ops[i].bytes for i in large.program.inputs if i not in large.places)
    most = max(_LEAST_BYTES, min(_MOST_BYTES, (explain(large, "").peak_bytes - given) // _PLAIN))
    shapes, results = ([ops[i].shape for i in ids] for ids in (large.program.inputs, large.program.outputs))
    for side in _SIDES:
        small = small_shapes(shapes, results, side)
        sizes = graph.bind(small) if small else None
        if sizes is not None:
            program = lower(graph, sizes, device, kernels, allow_whole=True, channels_last=channels_last)
            plan = schedule(program, program.rows if whole else -(-program.rows // 2))
            if explain(plan, "").peak_bytes <= most:
                return plan
    return None


def small_shapes(inputs: Shapes, outputs: Shapes, side: int = _SIDES[0]) -> list[tuple[int, ...]] | None:
    """The inputs' shapes with heights and widths cut down together, to about ``side`` latent pixels; None where they
    are no multiples of one another.

    16 divides the small sizes where it divides the large ones.
    """
    maps = [shape for shape in (*inputs, *outputs) if len(shape) >= 4]
    if not maps or any(len(shape) < 4 for shape in inputs):
        return None
    found = [list(shape) for shape in inputs]
    for dim in (-2, -1):
        least = min(shape[dim] for shape in maps)
        less = least if least < side + 16 else side + least % 16
        if any(shape[dim] % least for shape in inputs):
            return None
        for shape, new in zip(inputs, found, strict=True):
            new[dim] = shape[dim] // least * less
    return [tuple(shape) for shape in found]


class _Unconvolved(TorchFunctionMode):
    """Convolutions give what cuDNN's give but for the values: it loads and tries kernels for small sizes that no run
    asks for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CONVOLUTIONS:
            x, weight = args[:2]
            return _made(x, weight, CONVOLUTIONS[func](*args, **kwargs or {}))
        return func(*args, **kwargs or {})


def _made(x: Tensor, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Channels lie innermost where those of x or of the weight do."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if last is not None and (channels_innermost(x) or channels_innermost(weight)):
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=last)
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def channels_innermost(x: Tensor) -> bool:
    """What PyTorch's ``suggest_memory_format`` says of more than one channel. That function imports SymPy, which takes
    0.7 s."""
    return x.stride(1) < x.stride(-1)
