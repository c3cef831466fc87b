"""Weights that are cast and laid out once, and those that still need memory for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.session import weights
from tvae.pipeline.session.weights import PreparedWeights

NAMES = ["conv", "steps", "bias"]


def stored() -> dict[str, Tensor]:
    return {"conv": torch.randn(4, 3, 2, 2), "steps": torch.arange(4), "bias": torch.randn(4)}


def test_what_suits_is_itself_and_the_rest_is_made_once() -> None:
    have = stored()
    prepared = PreparedWeights(lambda _names: have, torch.float32, channels_last=True)
    assert prepared.to_come(NAMES) == ["conv"]
    first, again = prepared(NAMES), prepared(NAMES)
    assert prepared.to_come(NAMES) == []
    assert first["bias"].data_ptr() == have["bias"].data_ptr()
    assert first["conv"].is_contiguous(memory_format=torch.channels_last)
    assert first["conv"] is again["conv"]
    assert all(torch.equal(first[n], have[n]) for n in NAMES)


@pytest.mark.parametrize("change", ["in place", "another", "forgotten"])
def test_what_changed_is_made_again(change: str) -> None:
    have = stored()
    prepared = PreparedWeights(lambda _names: have, torch.float64, channels_last=False)
    assert prepared.to_come(NAMES) == ["conv", "bias"], "numbers that count keep their type"
    prepared(NAMES)
    if change == "in place":
        have["conv"].add_(1)
    elif change == "another":
        have["conv"] = torch.randn(4, 3, 2, 2)
    else:
        prepared.forget()
    assert prepared.to_come(["conv"]) == ["conv"]
    assert torch.equal(prepared(["conv"])["conv"], have["conv"].double())


def test_what_is_in_files_is_to_come() -> None:
    files, loaded = stored(), dict[str, Tensor]()

    def load(names: Sequence[str]) -> Mapping[str, Tensor]:
        loaded.update({n: files[n] for n in names})
        return loaded

    prepared = PreparedWeights(load, torch.float32, channels_last=False, there=lambda: loaded)
    assert prepared.to_come(NAMES) == NAMES
    assert not loaded, "asking loads nothing"
    prepared(["steps"])
    assert prepared.to_come(NAMES) == ["conv", "bias"]


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"no weight 'scale' \(1 missing\)"):
        PreparedWeights(lambda _names: stored(), torch.float32, channels_last=False)(["conv", "scale"])


def test_a_view_of_memory_that_was_freed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator may give its new values the address, and the count of writes, that the old ones had."""
    weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3))
    prepared = PreparedWeights(lambda _names: {"w": weight}, torch.float32, False)
    monkeypatch.setattr(weights, "_states", lambda _weights: ["as before"])
    first = prepared(["w"])["w"]
    assert prepared(["w"])["w"] is first
    other = weight.detach() * 2
    weight.untyped_storage().resize_(0)
    weight.data = other
    assert first.data_ptr() == 0
    assert torch.equal(prepared(["w"])["w"], other)


def test_weights_are_brought_to_a_device() -> None:
    """Once for each state of the source, and known before as still to come."""
    have = {"w": torch.ones(4), "n": torch.ones(2, dtype=torch.int64)}
    prepared = PreparedWeights(lambda _names: have, torch.float32, False, device=torch.device("meta"))
    assert prepared.to_come(["w", "n"]) == ["w", "n"]
    found = prepared(["w", "n"])
    assert {(t.device.type, t.dtype) for t in found.values()} == {("meta", torch.float32), ("meta", torch.int64)}
    assert prepared.to_come(["w", "n"]) == []
    assert prepared(["w", "n"])["w"] is found["w"]
    have["w"].add_(1)
    assert prepared(["w", "n"])["w"] is not found["w"]
