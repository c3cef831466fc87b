"""Settings of ``torch.export`` during a capture.

They keep it quiet, keep it apart from other threads and from settings of the process, and leave out work that a graph
does not need. None changes the result. All act on the capturing thread alone.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.capture.decompositions import decomposing
from tvae.pipeline.engine.capture.quiet import quiet
from tvae.pipeline.engine.capture.shortcuts import shortcuts
from tvae.pipeline.engine.capture.thread_patch import in_thread, patched

__all__ = ["ExportCleanup", "TookTooLong", "exporting"]

_log = logging.getLogger("tvae")
_EXPORT_LOCK = threading.RLock()
_INDEX_LIMIT = 2**31 - 1
"""Elements that a kernel with 32-bit indices can address."""


class TookTooLong(BaseException):
    """Raised at the deadline of a capture. The exporter would continue after an ``Exception``."""


@contextmanager
def exporting(*, fast: bool = True, deadline: float | None = None) -> Iterator[None]:
    """Apply all settings. One thread at a time, because the exporter has global state.

    Args:
        fast: take the shortcuts, which replace internals of the exporter and may not fit an untested release.
        deadline: processor time of this thread, in seconds, at which TookTooLong is raised.
    """
    with _EXPORT_LOCK, ExitStack() as settings:
        keep_quiet = settings.enter_context(quiet())

        def before_each_operation() -> None:
            keep_quiet()
            if deadline is not None and time.thread_time() > deadline:
                raise TookTooLong

        settings.enter_context(_no_shape_cache(before_each_operation))
        settings.enter_context(_no_backends())
        settings.enter_context(_module_calls_of_this_thread())
        settings.enter_context(_modes_of_this_thread())
        settings.enter_context(_no_printed_graph())
        settings.enter_context(_unchecked_distributions())
        settings.enter_context(_optional_suggestions())
        settings.enter_context(_not_compiling())
        settings.enter_context(_no_memory_limits())
        settings.enter_context(decomposing())
        if fast:
            settings.enter_context(shortcuts())
        yield


class ExportCleanup:
    """Releases what exports leave in caches of the process.

    PyTorch keeps the symbols of an export there, and with them its fake tensors and its program. Fake tensors hold weak
    references to a model's weights, and ``torch.utils.swap_tensors`` refuses a tensor that has one.
    """

    def __init__(self) -> None:
        self._modes: list[Any] = []

    def add(self, inputs: Sequence[Tensor]) -> None:
        """Note an export by the fake tensors that it calls the model with."""
        from torch._guards import detect_fake_mode

        self._modes.append(detect_fake_mode(list(inputs)))

    def release(self) -> None:
        """Release all exports. Their programs must have been read."""
        for mode in self._modes:
            if (environment := getattr(mode, "shape_env", None)) is not None:
                environment.tracked_fakes = []
            converter = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
            for name in ("lookup_tensor", "lookup_storage"):
                getattr(getattr(converter, "describer", None), name, {}).clear()
        self._modes.clear()


@contextmanager
def _no_shape_cache(before_each_operation: Callable[[], None]) -> Iterator[None]:
    """Bypass the exporter's cache of shapes.

    With symbols it costs more than it saves, and its comparisons of keys become guards that no model asked for.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    def dispatch(mode: Any, *args: Any) -> Any:
        before_each_operation()
        return mode._dispatch_impl(*args)

    with patched(FakeTensorMode, "_cached_dispatch_impl", dispatch):
        yield


@contextmanager
def _no_memory_limits() -> Iterator[None]:
    """Answer questions whether a value has too many elements as for a small input, without a guard.

    Models ask to avoid limits of kernels and of memory: diffusers' ``Upsample2D`` makes a large tensor contiguous, KVAE
    convolves it in chunks. The answer does not change the numbers, but its guards would bound the sizes, and between
    the limits of two layers make them constants.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    original: Any = ShapeEnv.evaluate_sym_node

    def evaluate(environment: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        answer = _answer_below_limits(node.expr, sys._getframe(2))
        return original(environment, node, *args, **kwargs) if answer is None else answer

    with patched(ShapeEnv, "evaluate_sym_node", evaluate):
        yield


def _answer_below_limits(question: Any, frame: FrameType | None) -> Any:
    """Return the answer for small sizes, if it is one and the same; None for other questions.

    A question of elements is a comparison with a number above ``_INDEX_LIMIT``. Or it is an inequality, or a number of
    chunks, that depends on several sizes, in a function that counts elements. That is monotone in each size, so that
    corners tell its answer for all small sizes.
    """
    import sympy

    inequality = isinstance(
        question, sympy.StrictGreaterThan | sympy.GreaterThan | sympy.StrictLessThan | sympy.LessThan
    )
    symbols = [*question.free_symbols] if inequality or type(question).__name__ in ("CeilToInt", "ceiling") else []
    if not symbols:
        return None
    if inequality and any(side.is_number and side >= _INDEX_LIMIT for side in question.args):
        return bool(question.subs(dict.fromkeys(symbols, sympy.Integer(64))))
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "tvae"):
        frame = frame.f_back
    if len(symbols) == 1 or frame is None or not {"numel", "nelement", "prod"} & {*frame.f_code.co_names}:
        return None
    corners = [dict.fromkeys(symbols, n) for n in (8, 16)]
    corners += [{symbol: 32 if symbol == large else 8 for symbol in symbols} for large in symbols]
    try:
        answers = {question.subs({s: sympy.Integer(n) for s, n in corner.items()}) for corner in corners}
        return (bool if inequality else int)(*answers)
    except (TypeError, ZeroDivisionError):  # several answers, or one that is no number
        return None


@contextmanager
def _no_printed_graph() -> Iterator[None]:
    """Keep the exporter from printing what it has traced where a model needs to know a value."""
    import torch.export._trace

    place: Any = torch.export._trace
    original = getattr(place, "get_class_if_classified_error", None)

    def classified(error: Exception) -> Any:
        vars(error).pop("partial_fx_graph", None)
        return original(error)  # type: ignore[misc]

    with patched(place, "get_class_if_classified_error", classified):
        yield


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Skip the checks of parameters in ``torch.distributions``, which read values."""
    from torch.distributions import Distribution

    original: Any = Distribution.__init__

    def init(distribution: Any, *args: Any, **kwargs: Any) -> None:
        original(distribution, *args[:2], **kwargs | {"validate_args": False})

    with patched(Distribution, "__init__", init):
        yield


@contextmanager
def _optional_suggestions() -> Iterator[None]:
    """Ignore failures of the solver that suggests simpler guards at the end of an export.

    It fails on some guards or not by the order in which it takes them from a set. The guards themselves stay.
    """
    from torch.fx.experimental.symbolic_shapes import DimConstraints

    original: Any = DimConstraints.solve

    def solve(constraints: Any) -> None:
        try:
            original(constraints)
        except Exception:  # whatever sympy raises, only a suggestion is lost
            _log.debug("the exporter cannot solve its guards", exc_info=True)

    with patched(DimConstraints, "solve", solve):
        yield


@contextmanager
def _not_compiling() -> Iterator[None]:
    """Tell models that no compiler is at work, so that the graph is of what they compute without one.

    PyTorch's own code is told that one is: what it computes for the exporter is the same, and can be captured.
    """
    import torch.export._trace

    def answer(original: Callable[[], bool]) -> Callable[[], bool]:
        def is_compiling() -> bool:
            frame: FrameType | None = sys._getframe(2)  # the first frame is the thread patch
            while frame is not None and frame.f_code.co_name in ("is_compiling", "is_exporting"):
                frame = frame.f_back  # PyTorch's own functions of these names ask for their callers
            caller = "" if frame is None else str(frame.f_globals.get("__name__", ""))
            return caller.partition(".")[0] == "torch" or bool(original())

        return is_compiling

    with ExitStack() as places:
        # the exporter's own note of it is global: other threads would see it
        places.enter_context(patched(torch.export._trace, "_compiling_state_context", nullcontext))
        for name in ("is_compiling", "is_exporting"):
            places.enter_context(patched(torch.compiler, name, answer(getattr(torch.compiler, name, lambda: False))))
        yield


@contextmanager
def _no_backends() -> Iterator[None]:
    """Tell this thread that cuDNN and oneDNN are off.

    Norms and convolutions ask for them and choose by conditions on sizes, which would become guards. The exporter
    itself would switch them off for the whole process.
    """
    import torch.export._trace

    backend: Any = type(torch.backends.cudnn)
    kinds: Any = vars(torch._C)["_ConvBackend"]
    thread = threading.get_ident()
    switch: Any = vars(backend)["enabled"]
    off_here = type(switch)(lambda: threading.get_ident() != thread and switch.getter(), switch.setter)

    def convolution_backend(*args: Any, **kwargs: Any) -> Any:  # (input, weight, ...), named or not by release
        weight = kwargs["weight"] if "weight" in kwargs else args[1]
        return kinds.Slow3d if weight.ndim == 5 else kinds.Slow2d

    with (
        patched(torch.export._trace, "_ignore_backend_decomps", nullcontext),
        patched(torch._C, "_select_conv_backend", convolution_backend),
    ):
        backend.enabled = off_here
        try:
            yield
        finally:
            backend.enabled = switch


@contextmanager
def _modes_of_this_thread() -> Iterator[None]:
    """Give this thread its own stack of the modes that see operators before they are decomposed."""
    import torch._ops

    current: Any = getattr(torch._ops, "mode_stack_state_for_pre_dispatch", None)
    if current is None:
        yield
        return
    own = type(current())()
    with patched(torch._ops, "mode_stack_state_for_pre_dispatch", lambda: own):
        yield


@contextmanager
def _module_calls_of_this_thread() -> Iterator[None]:
    """Limit the exporter's replacement of ``nn.Module.__call__`` to this thread."""
    from torch.fx import _symbolic_trace

    patcher_class: Any = getattr(_symbolic_trace, "_Patcher", None)
    if getattr(patcher_class, "patch_method", None) is None:
        yield
        return
    thread = threading.get_ident()

    def patch_method(
        patcher: Any, place: type, name: str, function: Callable[..., Any], deduplicate: bool = True
    ) -> None:
        current = getattr(place, name)
        if deduplicate and getattr(current, "__fx_already_patched", False):
            return
        patcher.patches_made.append(_Patch(place, name, current, in_thread(thread, current, function)))
        patcher.patches_made[-1].patch()

    with patched(patcher_class, "patch_method", patch_method):
        yield


class _Patch:
    """A method that is replaced until ``revert``, also where another thread replaces it in between."""

    def __init__(self, place: type, name: str, original: Any, function: Callable[..., Any]) -> None:
        self._place, self._name, self._original = place, name, original
        self._active = False

        def either(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                return function(*args, **kwargs)
            self._remove()  # other code had replaced it since, and has now restored this one
            return original(*args, **kwargs)

        self._either = either

    def patch(self) -> None:
        self._active = True
        setattr(self._place, self._name, self._either)

    def revert(self) -> None:
        self._active = False
        self._remove()

    def _remove(self) -> None:
        if vars(self._place).get(self._name) is self._either:
            setattr(self._place, self._name, self._original)
