"""How the exporter is set while it captures: without messages, and without work that a graph has no use for.

All of it changes what an export costs, nothing changes what comes out. What a release of PyTorch does not know is left
out.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from tvae.pipeline.engine.known_calls import known_calls
from tvae.pipeline.engine.known_shapes import known_shapes
from tvae.pipeline.engine.loading import load_exporter, plain_sizes

__all__ = ["exporting"]

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def exporting(*, shortcuts: bool = True) -> Iterator[None]:
    """Everything below at once. The settings are the process's: one thread at a time.

    shortcuts: also what reaches into the exporter, and may not suit a release that nobody has tried it with.
    """
    import torch._dynamo.config

    with _ONE_AT_A_TIME, ExitStack() as settings:
        settings.enter_context(_quiet())
        # with symbols the cache of shapes costs more than it saves (a third of a capture), and its comparisons of keys
        # become guards that no model asked for
        settings.enter_context(_set(torch._dynamo.config, "fake_tensor_cache_enabled", False))
        if shortcuts:
            settings.enter_context(_shortcuts())
        yield


@contextmanager
def _shortcuts() -> Iterator[None]:
    load_exporter()
    import torch._export.utils
    import torch.export._trace
    from torch.fx.experimental import proxy_tensor

    with ExitStack() as settings:
        # how every value lies in memory is noted twice: in what we read, and in a description that takes a fifth of the
        # time, with arithmetic on symbols to find out whether it is contiguous
        settings.enter_context(_left_out(proxy_tensor, "_extract_tensor_metadata"))
        # sizes that depend on values are looked for in all that every node holds; a graph with one is no use to us
        settings.enter_context(_left_out(torch.export._trace, "_replace_unbacked_bindings"))
        # checks of what a graph's types and sizes say already
        settings.enter_context(_left_out(torch._export.utils, "_insert_aten_to_metadata_assert_pass"))
        settings.enter_context(_innermost_modules())
        settings.enter_context(_sizes_when_asked_for())
        settings.enter_context(_code_when_asked_for())
        settings.enter_context(plain_sizes())
        settings.enter_context(known_shapes())
        settings.enter_context(known_calls())
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings and logs: what there is to say of a failed export is in its exception."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _set(settings: Any, name: str, value: object) -> Iterator[None]:
    if not hasattr(settings, name):
        yield
        return
    before = getattr(settings, name)
    setattr(settings, name, value)
    try:
        yield
    finally:
        setattr(settings, name, before)


def _instead(place: Any, name: str, function: Callable[..., Any]) -> AbstractContextManager[object]:
    """This function in this thread; another may be compiling."""
    original: Any = getattr(place, name, None)
    thread = threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        return (function if threading.get_ident() == thread else original)(*args, **kwargs)

    return _set(place, name, either)


def _left_out(place: Any, name: str) -> AbstractContextManager[object]:
    """A function that does nothing in this thread."""
    return _instead(place, name, lambda *_args, **_kwargs: None)


@contextmanager
def _code_when_asked_for() -> Iterator[None]:
    """Python code of a graph is written when somebody runs it, not after each of the exporter's passes."""
    import torch.export.exported_program as programs
    from torch.fx import _lazy_graph_module

    deferred: Any = getattr(_lazy_graph_module, "_use_lazy_graph_module", None)
    lazy: Any = getattr(_lazy_graph_module, "_LazyGraphModule", None)
    if deferred is None or lazy is None:
        yield
        return
    with deferred(True), _instead(programs, "_create_graph_module_for_export", lazy):
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

    with _instead(tracer_class, "create_node", create_node):
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

    with _instead(proxy_tensor, "track_tensor", track_tensor):
        yield
