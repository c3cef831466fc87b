"""How the exporter is set while it captures: without messages, and without work that a graph has no use for.

All of it changes what an export costs, nothing changes what comes out. What a release of PyTorch does not know is left
out. All of it holds in the thread that captures and in no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from tvae.pipeline.engine.capture.in_thread import instead, left_out, replaced_in
from tvae.pipeline.engine.capture.quiet import quiet
from tvae.pipeline.engine.capture.shortcuts.known_calls import known_calls
from tvae.pipeline.engine.capture.shortcuts.known_shapes import known_shapes
from tvae.pipeline.engine.capture.shortcuts.loading import load_exporter, plain_sizes

__all__ = ["exporting"]

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def exporting(*, shortcuts: bool = True) -> Iterator[None]:
    """Everything below at once. One thread at a time: the exporter itself has notes that are the process's.

    shortcuts: also what reaches into the exporter, and may not suit a release that nobody has tried it with.
    """
    with _ONE_AT_A_TIME, ExitStack() as settings:
        stay_quiet = settings.enter_context(quiet())
        settings.enter_context(_shapes_are_not_kept(stay_quiet))
        settings.enter_context(_backends_as_they_are())
        settings.enter_context(_own_modules_alone())
        settings.enter_context(_own_modes())
        if shortcuts:
            settings.enter_context(_shortcuts())
        yield


@contextmanager
def _shapes_are_not_kept(at_every_operation: Callable[[], None]) -> Iterator[None]:
    """With symbols the exporter's cache of shapes costs more than it saves (a third of a capture), and its comparisons
    of keys become guards that no model asked for."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def dispatch(mode: Any, *args: Any) -> Any:
        at_every_operation()
        return mode._dispatch_impl(*args)

    with instead(FakeTensorMode, "_cached_dispatch_impl", dispatch):
        yield


@contextmanager
def _backends_as_they_are() -> Iterator[None]:
    """The exporter switches cuDNN and oneDNN off while it traces, for the whole process, and writes into settings of
    precision: a graph is not to depend on them. This thread alone is told that they are off: norms ask whether cuDNN
    is on, and convolutions whom to choose, by conditions on sizes that would become the graph's."""
    import torch.export._trace

    backend: Any = type(torch.backends.cudnn)
    kinds: Any = vars(torch._C)["_ConvBackend"]
    thread = threading.get_ident()
    switch: Any = vars(backend)["enabled"]
    told = type(switch)(lambda: threading.get_ident() != thread and switch.getter(), switch.setter)

    def convolution_by(*args: Any, **kwargs: Any) -> Any:  # (input, weight, ...); releases of PyTorch name them or not
        weight = kwargs["weight"] if "weight" in kwargs else args[1]
        return kinds.Slow3d if weight.ndim == 5 else kinds.Slow2d

    with (
        instead(torch.export._trace, "_ignore_backend_decomps", nullcontext),
        instead(torch._C, "_select_conv_backend", convolution_by),
    ):
        backend.enabled = told
        try:
            yield
        finally:
            backend.enabled = switch


@contextmanager
def _own_modes() -> Iterator[None]:
    """Modes that see operators before they are taken apart are the process's: of these, this thread has its own."""
    import torch._ops

    found: Any = getattr(torch._ops, "mode_stack_state_for_pre_dispatch", None)
    if found is None:
        yield
        return
    own = type(found())()
    with instead(torch._ops, "mode_stack_state_for_pre_dispatch", lambda: own):
        yield


@contextmanager
def _own_modules_alone() -> Iterator[None]:
    """The exporter takes the place of ``nn.Module.__call__`` while it goes through a model. The modules that other
    threads call meanwhile are not in that model."""
    from torch.fx import _symbolic_trace

    patcher_class: Any = getattr(_symbolic_trace, "_Patcher", None)
    original: Any = getattr(patcher_class, "patch_method", None)
    if original is None:
        yield
        return
    thread = threading.get_ident()

    def patch_method(
        patcher: Any, place: type, name: str, function: Callable[..., Any], deduplicate: bool = True
    ) -> None:
        there = getattr(place, name)
        if deduplicate and getattr(there, "__fx_already_patched", False):
            return
        patcher.patches_made.append(_Patch(place, name, there, replaced_in(thread, there, function)))
        patcher.patches_made[-1].patch()

    with instead(patcher_class, "patch_method", patch_method):
        yield


class _Patch:
    """A method that is replaced until ``revert``."""

    def __init__(self, place: type, name: str, original: Any, function: Callable[..., Any]) -> None:
        self._place, self._name, self._original = place, name, original
        self._active = False

        def either(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                return function(*args, **kwargs)
            self._take_out()  # somebody else's had come on top, and has put this one back
            return original(*args, **kwargs)

        self._either = either

    def patch(self) -> None:
        """Also again, after ``revert``."""
        self._active = True
        setattr(self._place, self._name, self._either)

    def revert(self) -> None:
        """What was there; where another thread has put its own on top, that one stays."""
        self._active = False
        self._take_out()

    def _take_out(self) -> None:
        if vars(self._place).get(self._name) is self._either:
            setattr(self._place, self._name, self._original)


@contextmanager
def _shortcuts() -> Iterator[None]:
    load_exporter()
    import torch._export.utils
    import torch.export._trace
    from torch.fx.experimental import proxy_tensor

    with ExitStack() as settings:
        # how every value lies in memory is noted twice: in what we read, and in a description that takes a fifth of the
        # time, with arithmetic on symbols to find out whether it is contiguous
        settings.enter_context(left_out(proxy_tensor, "_extract_tensor_metadata"))
        # sizes that depend on values are looked for in all that every node holds; a graph with one is no use to us
        settings.enter_context(left_out(torch.export._trace, "_replace_unbacked_bindings"))
        # checks of what a graph's types and sizes say already
        settings.enter_context(left_out(torch._export.utils, "_insert_aten_to_metadata_assert_pass"))
        settings.enter_context(_innermost_modules())
        settings.enter_context(_sizes_when_asked_for())
        settings.enter_context(_code_when_asked_for())
        settings.enter_context(plain_sizes())
        settings.enter_context(known_shapes())
        settings.enter_context(known_calls())
        yield


@contextmanager
def _code_when_asked_for() -> Iterator[None]:
    """Python code of a graph is written when somebody runs it, not after each of the exporter's passes."""
    import torch.export.exported_program as programs
    from torch.fx import _lazy_graph_module

    lazy: Any = getattr(_lazy_graph_module, "_LazyGraphModule", None)
    if lazy is None:
        yield
        return
    with (
        instead(_lazy_graph_module, "_get_graph_module_cls", lambda: lazy),
        instead(programs, "_create_graph_module_for_export", lazy),
    ):
        yield


@contextmanager
def _innermost_modules() -> Iterator[None]:
    """A node is told the module that it comes from, not all those around it, whose names are gone through later on."""
    from torch.fx.experimental import proxy_tensor

    tracer_class: Any = getattr(proxy_tensor, "_ModuleStackTracer", None)
    if tracer_class is None:
        yield
        return

    def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Any:
        tracer.record_stack_traces = False  # nor the lines of source that led to it, which takes longer than the node
        node = super(tracer_class, tracer).create_node(*args, **kwargs)
        around = node.meta.get("nn_module_stack") or tracer.module_stack
        path, kind = next(reversed(around.values()), ("", ""))
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        node.meta["nn_module_stack"] = {path: (path, name)} if path else {}
        return node

    with instead(tracer_class, "create_node", create_node):
        yield


@contextmanager
def _sizes_when_asked_for() -> Iterator[None]:
    """Sizes of inputs have nodes. Of a tensor whose sizes are multiples of those, what an operation takes as an
    argument is computed from them, and no node is made ready for every size and every step. Other sizes, computed
    again, would come out as the same number in other words."""
    from torch.fx.experimental import proxy_tensor

    note: Any = getattr(proxy_tensor, "set_proxy_slot", None)
    pair: Any = getattr(proxy_tensor, "_ProxyTensor", None)
    original: Any = getattr(proxy_tensor, "track_tensor", None)
    if not (note and pair and original and hasattr(proxy_tensor, "_build_proxy_for_sym_expr")):
        yield
        return
    multiples: set[Any] = set()

    def is_multiple(size: Any, tracer: Any) -> bool:
        expression = None if type(size) is int else size.node._expr
        if expression is None or expression in multiples:
            return True
        if expression.as_coeff_Mul()[1] not in tracer.sympy_expr_tracker:
            return False
        multiples.add(expression)
        return True

    def track_tensor(tensor: Any, proxy: Any, *, constant: Any, tracer: Any) -> None:
        if proxy.node.op != "placeholder" and all(is_multiple(size, tracer) for size in tensor.shape):
            note(tensor, tracer, pair(proxy, constant))
        else:
            original(tensor, proxy, constant=constant, tracer=tracer)

    with instead(proxy_tensor, "track_tensor", track_tensor):
        yield
