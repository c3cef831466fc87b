"""Files of ``torch.save``: tensors by name, no code run, and one line for what holds none."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tvae.pipeline.files.pickled_tensors import read_pickled, spec_of


def saved(value: Any, folder: Path) -> Path:
    torch.save(value, folder / "a.pt")
    return folder / "a.pt"


@pytest.mark.parametrize("wrapped", ["bare", "state_dict", "model"])
def test_tensors_by_name(wrapped: str, tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 4).T, "b": torch.nn.Parameter(torch.ones(2).half()), "c": torch.arange(3)}
    state = {**weights, "step": 3, "name": "x", "sparse": torch.ones(2).to_sparse()}
    optimizer = {"state": {0: torch.ones(2)}, "param_groups": [{"lr": 1e-4}]}
    path = saved({"bare": state, wrapped: {wrapped: state, "optimizer": optimizer}}[wrapped], tmp_path)
    found = read_pickled(path)
    assert found.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in found.items())
    assert not any(value.requires_grad for value in found.values())
    specs = [(spec.dtype, spec.shape) for spec in map(spec_of, found.values())]
    assert specs == [("F32", (4, 3)), ("F16", (2,)), ("I64", (3,))]


class Runs:
    """Unpickled, it would make a file."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("place", ["key", "value", "whole", "state"])
def test_no_code_runs(place: str, tmp_path: Path) -> None:
    made = tmp_path / "it ran"
    for call in ((os.system, (f"touch '{made}'",)), (eval, (f"open({str(made)!r}, 'w')",)), (os.mkdir, (str(made),))):
        bad: Any = Runs(*call)
        held: dict[Any, Any] = {"key": {bad: 1}, "value": {"x": bad}, "whole": {}, "state": {"state_dict": bad}}[place]
        path = saved(bad if place == "whole" else {"w": torch.ones(2), **held}, tmp_path)
        with pytest.raises(ValueError, match="objects of Python's"):
            read_pickled(path)
        assert not made.exists()


def test_what_is_no_dictionary_of_tensors_is_one_line(tmp_path: Path) -> None:
    for value, reason in (
        (torch.ones(2), "without a name"),
        (torch.nn.Linear(1, 1), "objects of Python's"),
        ([torch.ones(2)], "objects of Python's"),
        ({"a": 1}, "no tensors by name"),
        ({"ema": {"w": torch.ones(1)}, "model": {"w": torch.ones(1)}}, r"several sets of weights \(ema, model\)"),
        ({"a\nb": torch.ones(1)}, r"has the name 'a\\nb'"),
    ):
        with pytest.raises(ValueError, match=reason) as error:
            read_pickled(saved(value, tmp_path))
        assert "\n" not in str(error.value)
    torch.save({"w": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"from before PyTorch 1\.6"):
        read_pickled(tmp_path / "old.pt")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no fifos here")
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(OSError, match="not a regular file"):
        read_pickled(tmp_path / "a.pt")


def test_damage_is_one_line_or_tensors(tmp_path: Path) -> None:
    path = saved({"state_dict": {f"w{n}": torch.randn(3, n + 1) for n in range(4)}, "epoch": 1}, tmp_path)
    whole, refused = path.read_bytes(), list[str]()
    for seed in range(100):
        rng = random.Random(seed)
        content = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.randrange(len(content))] if rng.random() < 0.3 else content)
        try:
            read_pickled(path)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all(re.fullmatch(r"[ -~]+", told) for told in refused)
