"""The exporter notes the model that it is going through, and what it has replaced meanwhile, in globals: one for all
threads. Two exports at a time end each other's, and leave what they replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType
from typing import Any

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["own_exporter"]


@contextmanager
def own_exporter() -> Iterator[None]:
    """In this thread ``torch.export`` runs with such globals of its own. To be entered after all else is replaced."""
    import torch.export._trace

    place: Any = torch.export._trace
    names = vars(place)
    own = dict(names)
    own.update({name: _rebound(value, names, own) for name, value in names.items() if isinstance(value, FunctionType)})
    with _own_patcher(), instead(place, "_export", own["_export"]):
        yield


def _rebound(function: FunctionType, names: dict[str, Any], own: dict[str, Any]) -> FunctionType:
    """The function with its own globals in place of these; those that decorators close over, likewise."""
    before = function.__closure__ or ()
    cells = tuple(_cell(cell, names, own) for cell in before)
    if function.__globals__ is not names and cells == before:
        return function
    theirs = own if function.__globals__ is names else function.__globals__
    copy = FunctionType(function.__code__, theirs, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    return copy


def _cell(cell: CellType, names: dict[str, Any], own: dict[str, Any]) -> CellType:
    held = cell.cell_contents
    rebound = _rebound(held, names, own) if isinstance(held, FunctionType) else held
    return cell if rebound is held else CellType(rebound)


@contextmanager
def _own_patcher() -> Iterator[None]:
    """What the exporter has replaced, it puts back at its end; and meanwhile, where Dynamo compiles in between."""
    from torch.fx import _symbolic_trace

    place: Any = _symbolic_trace
    at_work: list[Any] = []

    @contextmanager
    def new() -> Iterator[Any]:
        at_work.append(place._Patcher())
        try:
            yield at_work[-1]
        finally:
            at_work.pop().revert_all_patches()

    @contextmanager
    def put_back() -> Iterator[None]:
        with ExitStack() as then:
            for patcher in at_work[-1:]:
                patcher.revert_all_patches()
                then.callback(patcher.reapply_all_patches)
            yield

    with instead(place, "_new_patcher", new), instead(place, "_maybe_revert_all_patches", put_back):
        yield
