"""Settings of the exporter during a capture: no messages, and no work that a graph does not need.

They change what an export costs, never its result. Settings that a release of PyTorch does not have are left out. They
are valid in the capturing thread only.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from tvae.pipeline.engine.capture.arithmetic_of_sizes import sizes_calculate
from tvae.pipeline.engine.capture.global_hooks import hooks_on_models_alone
from tvae.pipeline.engine.capture.in_thread import instead, replaced_in
from tvae.pipeline.engine.capture.kinds_of_sizes import sizes_are_numbers
from tvae.pipeline.engine.capture.maths import sizes_in_functions
from tvae.pipeline.engine.capture.no_compiler import no_compiler_for_models
from tvae.pipeline.engine.capture.patched_functions import patched_once
from tvae.pipeline.engine.capture.quiet import quiet
from tvae.pipeline.engine.capture.quotients import whole_quotients
from tvae.pipeline.engine.capture.shortcuts.fewer_notes import fewer_notes
from tvae.pipeline.engine.capture.shortcuts.known_shapes import known_shapes
from tvae.pipeline.engine.capture.shortcuts.plain_regions import plain_regions
from tvae.pipeline.engine.capture.taken_apart import taken_apart

__all__ = ["exporting", "takes_shortcuts"]

_log = logging.getLogger("tvae")
_ONE_AT_A_TIME = threading.RLock()


def takes_shortcuts() -> bool:
    """Not where the environment variable ``TVAE_PLAIN_EXPORT`` is set (to anything but 0): captures then take about
    twice as long, and are spared what reaches into the exporter."""
    return os.environ.get("TVAE_PLAIN_EXPORT", "0") in ("", "0")


@contextmanager
def exporting(*, shortcuts: bool = True) -> Iterator[None]:
    """All settings of this file at once. One thread at a time, because the exporter has global state.

    shortcuts: also replace internals of the exporter, which may not work with an untested release.
    """
    with _ONE_AT_A_TIME, ExitStack() as settings:
        stay_quiet = settings.enter_context(quiet())
        settings.enter_context(_shapes_are_not_kept(stay_quiet))
        settings.enter_context(_backends_as_they_are())
        settings.enter_context(_own_modules_alone())
        settings.enter_context(hooks_on_models_alone())
        settings.enter_context(_own_modes())
        settings.enter_context(_no_graph_is_printed())
        settings.enter_context(_distributions_are_not_checked())
        settings.enter_context(_suggestions_may_fail())
        settings.enter_context(no_compiler_for_models())
        settings.enter_context(patched_once())
        settings.enter_context(whole_quotients())
        settings.enter_context(sizes_in_functions())
        settings.enter_context(sizes_are_numbers())
        settings.enter_context(sizes_calculate())
        settings.enter_context(taken_apart())
        if shortcuts:
            settings.enter_context(fewer_notes())
            settings.enter_context(known_shapes())
            settings.enter_context(plain_regions())
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
def _no_graph_is_printed() -> Iterator[None]:
    """Where a model needs to know a value, the exporter prints what it has traced."""
    import torch.export._trace

    place: Any = torch.export._trace
    original = getattr(place, "get_class_if_classified_error", None)

    def classified(error: Exception) -> Any:
        vars(error).pop("partial_fx_graph", None)
        return original(error)  # type: ignore[misc]

    with instead(place, "get_class_if_classified_error", classified):
        yield


@contextmanager
def _distributions_are_not_checked() -> Iterator[None]:
    """Those of PyTorch look at the values of their parameters when they are made: that they are no NaN, say."""
    from torch.distributions import Distribution

    original: Any = Distribution.__init__

    def made(distribution: Any, *args: Any, **kwargs: Any) -> None:
        original(distribution, *args[:2], **kwargs | {"validate_args": False})

    with instead(Distribution, "__init__", made):
        yield


@contextmanager
def _suggestions_may_fail() -> Iterator[None]:
    """At its end the exporter solves its guards, to suggest simpler ones. Its solver fails on some (sizes of windows
    that a model pads to), or not, by the order in which it takes them from a set. The guards are what they were."""
    from torch.fx.experimental.symbolic_shapes import DimConstraints

    original: Any = DimConstraints.solve

    def solve(constraints: Any) -> None:
        try:
            original(constraints)
        except Exception:  # whatever sympy raises: only a suggestion is lost
            _log.debug("the exporter cannot solve its guards", exc_info=True)

    with instead(DimConstraints, "solve", solve):
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
    threads call in that time are not in that model."""
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
            self._take_out()  # other code had replaced it since, and has now restored this one
            return original(*args, **kwargs)

        self._either = either

    def patch(self) -> None:
        """Replace the method; also once more after ``revert``."""
        self._active = True
        setattr(self._place, self._name, self._either)

    def revert(self) -> None:
        """Restore the method, unless another thread has replaced it since."""
        self._active = False
        self._take_out()

    def _take_out(self) -> None:
        if vars(self._place).get(self._name) is self._either:
            setattr(self._place, self._name, self._original)
