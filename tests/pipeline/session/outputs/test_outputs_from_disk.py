"""What disk says of a model's outputs is checked before anything is made of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch
from returned_values import Derived, alike, from_disk
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.outputs import check_spec, flatten, is_known, rebuild, storable


def nested(levels: int) -> Any:
    value: Any = {"tensor": 0}
    for _ in range(levels):
        value = {"sequence": "list", "items": [value]}
    return value


@pytest.mark.parametrize(
    "doc",
    [
        *(None, [], "tensor", 7, {}, {"tensor": 1}, {"tensor": -1}, {"tensor": True}, {"tensor": 0.0}, {"tensor": "0"}),
        *({"constant": [1]}, {"size": [0, 2]}, {"size": [1, 0]}, {"device": "os:system"}, {"dtype": "load"}),
        *({"sequence": "list", "items": [0]}, {"class": 1, "state": {}, "items": []}, nested(25)),
        {"class": "a:b", "from": {"tensor": 1}, "arguments": {}},
        {"class": "a:b", "state": {"x": {"tensor": 3}}, "items": []},
    ],
)
def test_other_descriptions_are_refused(doc: Any) -> None:
    assert check_spec({"sequence": "list", "items": [{"tensor": 0}, {"size": [0, 1]}]}, [2])
    with pytest.raises(ValueError, match="description"):
        check_spec(doc, [2])


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "builtins:exec", "subprocess:Popen", "torch:load", "torch:Generator", "torch.hub:load"),
        *("torch.nn.modules.activation:SiLU", "enum:Enum", "this:that", "numpy:ndarray"),
        *("tvae.pipeline.tiled_vae:TiledVAE", "tvae.pipeline.session.outputs:torch.load"),
    ],
)
@pytest.mark.parametrize("form", [{"state": {}, "items": []}, {"from": {"tensor": 0}, "arguments": {}}])
def test_no_class_is_imported_or_called_by_its_name(name: str, form: dict[str, Any]) -> None:
    before = set(sys.modules)
    assert not is_known(check_spec({"class": name, **form}, [4]))
    assert set(sys.modules) == before


class Command:
    def __init__(self, command: Tensor) -> None:
        pytest.fail("called")


def test_only_distributions_are_made_by_their_constructors() -> None:
    name = f"{Command.__module__}:{Command.__qualname__}"
    assert not is_known({"class": name, "from": {"tensor": 0}, "arguments": {}})


def test_a_class_inside_of_a_function_stays_in_memory() -> None:
    class Local(Derived):
        pass

    tensors, spec = flatten(Local(torch.ones(1)))
    assert type(rebuild(spec, tensors)) is Local
    assert not storable(spec)
    with pytest.raises(UsageError, match="not what it was"):
        rebuild({**spec, "class": "nowhere:Local"}, tensors)


def test_a_description_is_json() -> None:
    tensors, spec = flatten(Derived(torch.ones(1)))
    assert json.loads(json.dumps(spec)) == spec
    alike(rebuild(from_disk(spec, tensors), tensors), Derived(torch.ones(1)))
