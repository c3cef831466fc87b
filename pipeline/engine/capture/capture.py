"""Capture a function that calls a module as a ``Graph``, by ``torch.export``.

The export is symbolic in the height and width of the first input (and in the sizes of other inputs that are tied to
them), and in the frames of a clip whose strips divide those. Its guards, the conditions under which the traced path is
the model's own, become ``Graph.guards``: a shape that fails them is captured again, never run on the wrong graph. Where
that fails or makes the height a constant, the model is captured at several concrete sizes (see ``concrete``).
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.autocast import explicit_autocast
from tvae.pipeline.engine.capture.concrete import Corners, unify
from tvae.pipeline.engine.capture.constants import failing_line, watch_constants
from tvae.pipeline.engine.capture.dynamic_shapes import DynamicShapes, dynamic_shapes
from tvae.pipeline.engine.capture.exporter import ExportCleanup, TookTooLong, exporting
from tvae.pipeline.engine.capture.scalar_weights import known_scalars
from tvae.pipeline.engine.capture.trace_mode import TraceMode, refusing_random_numbers
from tvae.pipeline.engine.capture.translate import translate
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.errors import UnsupportedOp, UsageError, in_module

__all__ = ["capture", "is_transient"]

_log = logging.getLogger("tvae")
_SECONDS = 30.0
"""Processor time of a symbolic capture, and of a concrete one. Expressions of sizes can grow with every layer."""


def capture(
    module: nn.Module,
    fn: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    rows: int = -2,
    scalars: Mapping[str, Tensor] | None = None,
) -> Graph:
    """Trace ``fn(*inputs)``, a function that computes with ``module``, into a Graph.

    Args:
        inputs: the tensors that vary from call to call; only shapes and types matter. The last two dimensions of each
            that has at least four are symbolic, unless they are 1 (the exporter treats 1 as a constant).
        rows: the dimension of the first input that strips divide; symbolic, too, where the model allows it.
        scalars: weights of one number whose values the model may read, by name. The graph serves these values alone.

    Raises UnsupportedOp where the model cannot be captured, and names the operation and its module.
    """
    entry = _Entry(module, fn, scalars or {})
    pinned = False
    errors: list[Exception] = []
    try:
        try:
            graph = _symbolic(entry, inputs, rows, errors)
            if graph.fixed is None:
                return graph
            pinned = True
        except TookTooLong as error:
            where = failing_line(module, error.__traceback__)
            why = f"torch.export takes more than {_SECONDS:.0f} s: expressions of sizes grow with every layer"
            errors.append(UnsupportedOp(where.op, where.module, why, whole=False, may_pass=True))
        except _Failed:
            pass
        unified = _concrete(entry, inputs, rows)
        if unified is not None:
            return unified
        if pinned:
            return _symbolic(entry, inputs, rows, errors)  # again, as ``fn`` keeps what its last trace returned
        raise _refusal(module, errors) from errors[0]
    finally:
        entry.close()
        if errors:
            errors.clear()  # their frames hold those of all callers, with the caches of a clip
            gc.collect()  # PyTorch 2.11 leaves these frames in reference cycles


def is_transient(errors: Iterable[BaseException]) -> bool:
    """Return whether a capture failed for want of memory, a file or a thread, or was interrupted.

    The same capture may succeed later. The causes and contexts of the errors count as well.
    """
    kinds = (MemoryError, OSError, ImportError, RecursionError, torch.OutOfMemoryError)
    words = ("not enough memory", "allocate memory", "out of memory", "CUDA error", "start new thread")
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [*errors]
    while pending:
        error = pending.pop()
        if error is None or any(error is known for known in seen):
            continue
        if not isinstance(error, Exception) or isinstance(error, kinds) or any(text in str(error) for text in words):
            return True
        seen.append(error)
        pending += [error.__cause__, error.__context__]
    return False


class _Failed(Exception):
    """Raised where no choice of symbols can be captured."""


class _Entry(nn.Module):
    """The module that is exported; the parameters of the model keep their names in it."""

    def __init__(self, module: nn.Module, fn: Callable[..., Sequence[Tensor]], scalars: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = module
        self._fn, self._scalars = fn, scalars
        self.shapes: DynamicShapes | None = None
        self._cleanup = ExportCleanup()

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        self._cleanup.add(inputs)
        if self.shapes is not None:
            self.shapes.declare(inputs)
        with (
            explicit_autocast(inputs[0].device) as check,
            refusing_random_numbers(self.model),
            TraceMode(self.model, check),
            known_scalars(self.model, self._scalars),
        ):
            return tuple(self._fn(*inputs))

    def close(self) -> None:
        """Release the exports and the model: the exporter leaves reference cycles, which would keep it alive."""
        self._cleanup.release()
        del self.model, self._fn, self._scalars


def _symbolic(entry: _Entry, inputs: Sequence[Tensor], rows: int, errors: list[Exception]) -> Graph:
    """Capture with symbolic sizes. Raises UsageError, TookTooLong, and _Failed after all choices have failed."""
    deadline = time.thread_time() + _SECONDS
    for fast in (True, False):
        for shapes in dynamic_shapes(inputs, rows):
            try:
                return _export(entry, inputs, rows, shapes, fast, deadline)
            except UsageError:
                raise  # of what the model returns, which no other choice changes
            except Exception as error:  # sizes that were multiples by chance, or that are constants to the model
                _log.debug("not captured with the sizes %s", shapes.shapes, exc_info=True)
                errors.append(error)
    raise _Failed


def _concrete(entry: _Entry, inputs: Sequence[Tensor], rows: int) -> Graph | None:
    """Capture at concrete sizes, those of the call last; None where that fails, or gives no rows to divide."""
    deadline = time.thread_time() + _SECONDS
    corners = Corners(inputs)
    examples = [corners.examples(*size) for size in corners.sizes]
    try:
        graphs = [_export(entry, tensors, rows, None, True, deadline) for tensors in examples]
        graph = unify(graphs, corners.sizes, rows)
    except (Exception, TookTooLong):  # the symbolic capture said why the model needs its sizes as numbers
        _log.debug("not captured at concrete sizes", exc_info=True)
        return None
    finally:
        for tensor in chain(*examples):
            tensor.resize_(0)
    return graph if graph.row_symbol is not None else None


def _export(
    entry: _Entry, inputs: Sequence[Tensor], rows: int, shapes: DynamicShapes | None, fast: bool, deadline: float
) -> Graph:
    entry.shapes = shapes
    dynamic = None if shapes is None else {"inputs": shapes.shapes}
    with watch_constants(entry.model) as pinned:
        with torch.no_grad(), exporting(fast=fast, deadline=deadline):
            program = torch.export.export(entry, (list(inputs),), dynamic_shapes=dynamic, strict=False)
        return translate(program, inputs, rows, pinned)


def _refusal(module: nn.Module, errors: Sequence[Exception]) -> UnsupportedOp:
    """Say in one line why the model cannot be captured, by the last of the errors."""
    error, transient = errors[-1], is_transient(errors)
    if isinstance(error, UnsupportedOp):
        error.may_pass |= transient
        return error
    why = line = f"torch.export says: {(str(error) or type(error).__name__).strip().splitlines()[0]}"
    if "guard on data-dependent" in line:
        why = "it goes by the values of a tensor, as in `if x.any()` or `x.item()` (data-dependent expression)"
    if "fake tensor in the exported program constant" in line:
        why = "it changes a tensor that is kept from call to call, as in `self.x.data.copy_(y)`"
    if (place := failing_line(module, error.__traceback__)).op != "torch.export":
        raised = place.op.startswith(("raise ", "assert "))  # the line's words are in the message already
        why += f"; it is raised {in_module(place.module)}" if raised else f"; of '{place.op}' {in_module(place.module)}"
    return UnsupportedOp("torch.export", type(module).__name__, why, whole=False, may_pass=transient)
