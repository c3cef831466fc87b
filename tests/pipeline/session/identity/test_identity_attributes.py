"""Any attribute of any part: another value is seen and told, and the first value again gives the first digest."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_vaes import TINY
from torch import nn

from tvae.pipeline.models.reference import BLENDED
from tvae.pipeline.session.identity.identity import NO_RESULT, identity_of


@cache
def built(name: str) -> tuple[nn.Module, list[tuple[nn.Module, str]], str]:
    """A model, every attribute of every part that may be set, and its digest."""
    model = TINY[name].build()
    places = [
        (part, attribute)
        for part in model.modules()
        for attribute in sorted(vars(part))
        if attribute not in NO_RESULT and not (part is model and attribute in BLENDED)
    ]
    return model, places, identity_of(model).digest


def other(value: Any, pick: int) -> Any:
    """A value that differs from this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + (1, 0.5, 1e-9)[pick % 3] if value != value + 1e-9 else value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, (tuple, list)) and value and pick % 2:
        changed = list(value)
        changed[pick % len(value)] = other(changed[pick % len(value)], pick)
        return type(value)(changed)
    return (0.0, "something", None if value is not None else False, torch.float16, {1: [2]}, {"a"}, nn.ReLU)[pick % 7]


@given(name=st.sampled_from(["AutoencoderKL", "AutoencoderKLWan", "AutoencoderTiny"]), data=st.data())
def test_any_attribute(name: str, data: st.DataObject) -> None:
    model, places, digest = built(name)
    part, attribute = data.draw(st.sampled_from(places))
    before = vars(part)[attribute]
    first = identity_of(model)
    vars(part)[attribute] = other(before, data.draw(st.integers(0, 1000)))
    try:
        assert not first.unchanged()
        changed = identity_of(model)
        assert changed.digest != digest
    finally:
        vars(part)[attribute] = before
    assert not changed.unchanged()
    assert first.unchanged()
    assert first.digest == digest


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.frozensets(st.text())
        ),
        max_leaves=8,
    )
)
def test_any_value(value: Any) -> None:
    """Equal values give equal digests, whatever objects they are; an attribute added to them gives another."""
    model, twin = nn.ReLU(), nn.ReLU()
    model.held, twin.held = value, copy.deepcopy(value)
    first = identity_of(model)
    assert first.portable
    assert identity_of(twin).digest == first.digest
    twin.held = [twin.held]
    assert identity_of(twin).digest != first.digest


def test_a_copy_has_the_same_digest() -> None:
    model = TINY["AutoencoderKL"].build()
    model.decoder.register_forward_hook(len)
    model.held = {"a": [model.decoder, {"b": model.encoder.conv_in.weight}]}
    model.held["self"] = model.held
    assert identity_of(copy.deepcopy(model)).digest == identity_of(model).digest
