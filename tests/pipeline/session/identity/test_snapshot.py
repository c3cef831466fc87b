"""What a capture writes into a model is found by name and put back."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_vaes import TINY
from torch import nn

from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.identity.module_identity import identity_of
from tvae.pipeline.session.identity.snapshot import Snapshot


class Memory:
    """State that is no module."""

    def __init__(self) -> None:
        self.seen: list[Any] = []


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
        self.prev: Any = None
        self.count = 1000
        self.cache = {"x": [1, {2}], "y": OrderedDict(a=1, b=2)}
        self.recent = deque([1, 2], maxlen=3)
        self.memory = Memory()
        self.anchor = torch.ones(2)


@torch.no_grad()
def written(part: Any) -> None:
    part.anchor.mul_(3)


CHANGES: dict[str, tuple[Callable[[Any], object], list[str]]] = {
    "attribute": (lambda part: setattr(part, "prev", torch.ones(2)), ["1.prev"]),
    "new attribute": (lambda part: setattr(part, "made", 1), ["1.made"]),
    "removed": (lambda part: delattr(part, "count"), ["1.count"]),
    "number": (lambda part: setattr(part, "count", 1001), ["1.count"]),
    "type of a number": (lambda part: setattr(part, "count", 1000.0), ["1.count"]),
    "list in a dict": (lambda part: part.cache["x"].append(3), ["1.cache['x']"]),
    "set in a list": (lambda part: part.cache["x"][1].add(3), ["1.cache['x'][1]"]),
    "dict": (lambda part: part.cache.update(z=1), ["1.cache"]),
    "ordered dict": (lambda part: part.cache["y"].pop("a"), ["1.cache['y']"]),
    "deque": (lambda part: part.recent.append(5), ["1.recent"]),
    "object": (lambda part: part.memory.seen.append(part), ["1.memory.seen"]),
    "attribute of an object": (lambda part: setattr(part.memory, "more", 1), ["1.memory.more"]),
    "tensor": (written, ["1.anchor"]),
    "buffer": (lambda part: part.norm.num_batches_tracked.add_(1), ["1.norm.num_batches_tracked"]),
    "buffer set": (lambda part: setattr(part.norm, "running_mean", torch.ones(2)), ["1.norm.running_mean"]),
    "layer": (lambda part: setattr(part, "conv", nn.Identity()), ["1.conv"]),
    "weight": (lambda part: setattr(part.conv, "weight", nn.Parameter(torch.ones(2, 2, 1, 1))), ["1.conv.weight"]),
    "memory of a weight": (lambda part: setattr(part.conv.weight, "data", torch.ones(2, 2, 1, 1)), ["1.conv.weight"]),
    "hook": (lambda part: part.conv.register_forward_hook(print), ["1.conv._forward_hooks"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_put_back(name: str) -> None:
    change, names = CHANGES[name]
    model = nn.Sequential(nn.Identity(), Stateful())
    digest, anchor = identity_of(model).digest, model[1].anchor.clone()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    snapshot = Snapshot(model)
    assert snapshot.changed() == []
    change(model[1])
    assert snapshot.changed() == names
    snapshot.restore()
    assert [n for n in snapshot.changed() if n != "1.anchor" and "num_batches" not in n] == []
    assert identity_of(model).digest == digest
    assert torch.equal(model[1].anchor, anchor)
    assert model.state_dict().keys() == kept.keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())


def test_an_equal_value_is_no_change() -> None:
    model = nn.Sequential(nn.Identity(), Stateful())
    snapshot = Snapshot(model)
    model[1].cache = {"x": [1, {2}], "y": OrderedDict(a=1, b=2)}
    model[1].count = int("1000")
    assert snapshot.changed() == []
    model[1].cache["x"][1].add(7)
    assert snapshot.changed() == ["1.cache"]


def test_old_style_weight_norm_is_no_state() -> None:
    with pytest.warns(FutureWarning):
        model = nn.Sequential(torch.nn.utils.weight_norm(nn.Conv2d(2, 2, 1)))
    snapshot, before = Snapshot(model), model[0].weight
    model(torch.zeros(1, 2, 2, 2))
    assert model[0].weight is not before
    assert snapshot.changed() == []
    snapshot.restore()
    assert model[0].weight is before


@pytest.mark.parametrize("name", ["AutoencoderKL", "AutoencoderKLCogVideoX", "AutoencoderKLLTXVideo", "SeedVR2VAE"])
def test_a_call_leaves_nothing_behind(name: str) -> None:
    tiny = TINY[name]
    model = tiny.build()
    snapshot = Snapshot(model)
    with torch.no_grad(), reference_mode(model):
        call_reference(model, "decode", tiny.input("decode", 4, 4), **tiny.extra("decode"))
    assert snapshot.changed() == []


def test_a_call_that_leaves_something_is_undone() -> None:
    tiny = TINY["AutoencoderKLWan"]
    model = tiny.build()
    digest, snapshot = identity_of(model).digest, Snapshot(model)
    with torch.no_grad(), reference_mode(model):
        call_reference(model, "decode", tiny.input("decode", 4, 4))
        assert "_feat_map" in snapshot.changed()
        second = Snapshot(model)
        call_reference(model, "decode", tiny.input("decode", 4, 4))
        assert second.changed() == []  # what a call leaves and the next leaves likewise is no state between them
    snapshot.restore()
    assert not hasattr(model, "_feat_map")
    assert identity_of(model).digest == digest
