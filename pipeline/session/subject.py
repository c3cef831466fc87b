"""What a session asks of the owner of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import LatentGeometry, stepping_of
from tvae.pipeline.models.stepping import Cuts
from tvae.pipeline.session.captures import Captures, Fits, Written
from tvae.pipeline.session.task import Task
from tvae.pipeline.session.turns import Turns

__all__ = ["Subject"]


@dataclass(frozen=True)
class Subject:
    """A model, as a session sees it.

    family: its class among those whose steps and frames are known, None for any other. key: identity of what its graphs
    depend on, None where they may not go to disk. module: gives what graphs are captured from, in the type of the
    computation. weights: the current ones, at least those of the names it is given. there: those that asking for takes
    no memory; None: all. borrowed: others write into the weights whenever they like. own_types: they are computed with
    in their own types, not in that of the computation. geometry: how pixels and latents relate, asked for where steps
    need it. setting: an attribute of the model; None: as the family has it. fits: of graphs from disk, those that can
    be this model's. still: is it what ``key`` says, also now? Another thread may change it while it is captured.
    written: gives a side's graph without a capture, of models that have one. check: raises UsageError for a side that
    has no weights. shared: by side, the graphs that sessions on several devices of this process have in common. Weights
    are then copied to each device, and who makes those sessions looks whether they change. numbers: weights whose
    values the key covers, so that graphs may depend on them.
    """

    family: str | None
    key: str | None
    module: Callable[[], nn.Module]
    weights: Callable[[Sequence[str]], Mapping[str, Tensor]]
    there: Callable[[], Mapping[str, Tensor]] | None = None
    borrowed: bool = False
    own_types: bool = False
    geometry: Callable[[], LatentGeometry] | None = None
    setting: Callable[[str], int | None] = lambda _name: None
    fits: Fits | None = None
    still: Callable[[], bool] = lambda: True
    written: Written | None = None
    check: Callable[[Side], None] = lambda _side: None
    shared: dict[Task, Captures] | None = None
    numbers: Callable[[], Mapping[str, Tensor]] = dict
    lock: Turns = field(default_factory=Turns)

    def cuts(self, side: Side) -> Cuts | None:
        """Where the steps of a side cut a clip; None where it has none."""
        stepping = None if self.family is None else stepping_of(self.family, side)
        if stepping is None:
            return None
        if stepping.cuts is not None:
            size = self.setting(stepping.sized_by) if stepping.sized_by else None
            return stepping.cuts if size is None else replace(stepping.cuts, size=size)
        assert self.geometry is not None, "a family's geometry is known"
        geometry = self.geometry()
        return Cuts(geometry.lead, geometry.temporal or 1)
