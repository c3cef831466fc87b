"""A new graph of one side of a VAE: its model is captured, as it computes without hooks and with weights that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.capture.concrete import example_tensor
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.run.storage import RowSource
from tvae.pipeline.models.calls import Call, Frames, Side, Step
from tvae.pipeline.models.nested import together
from tvae.pipeline.models.reference import call_reference, reference_mode, unhooked
from tvae.pipeline.session.identity.statefulness import StateWatch
from tvae.pipeline.session.outputs import Spec, add_trials, flatten, settle
from tvae.pipeline.session.turns import Turns

__all__ = ["new_graph"]

_ONE_AT_A_TIME = Turns()
"""While a model is captured its weights and settings are not its own."""


def new_graph(
    module: nn.Module,
    side: Side,
    step: Step | None,
    inputs: Sequence[Tensor | RowSource],
    call: Call,
    frames: Frames | None,
    numbers: Mapping[str, Tensor],
    still: Callable[[], bool],
) -> tuple[Graph, Spec, bool]:
    """The graph, what its outputs make, and whether the model was written to while it was captured.

    step, frames: see ``Compiled``. numbers: weights whose values the model may read, by name. still: is the model as it
    was? Raises UnsupportedOp, UsageError.
    """
    device = next(iter(module.parameters())).device
    spec: Spec = {}

    def called(x: Tensor, more: Sequence[Tensor]) -> tuple[list[Tensor], Spec]:
        if step is not None:
            result, caches = step(module, x, more)
            return [result, *caches], {}
        tensors = dict(zip(call.tensors, more, strict=True))
        options = {name: together(value, tensors) for name, value in call.options}
        kwargs = options | {name: t for name, t in tensors.items() if "[" not in name}
        if frames is not None and frames.option in kwargs:
            kwargs[frames.option] = x.shape[frames.dim]
        return flatten(call_reference(module, side, x, **kwargs))

    def traced(x: Tensor, *more: Tensor) -> list[Tensor]:
        tensors, found = add_trials(*watch.called(lambda x, *more: called(x, more), x, *more))
        spec.clear()
        spec.update(found)
        return [*tensors, *watch.extra]

    examples = [example_tensor(t.shape, t.dtype, device) for t in inputs]
    rows = -2 if frames is None else frames.dim
    with _ONE_AT_A_TIME:
        watch = StateWatch(module, side)  # not before: another capture's tensors may be in a cache of both models
        try:
            with reference_mode(module), unhooked(module):
                graph = simplify(capture(module, traced, examples, rows, numbers))
        finally:
            touched = not still()
            watch.restore()
            for example in examples:  # an error's frames hold them, and to print one would read what is not there
                example.resize_(0)
    return *settle(watch.checked(graph), spec), touched
