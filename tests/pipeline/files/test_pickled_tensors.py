"""Files of ``torch.save``, read as data: the tensors that ``torch.load`` gives, no code run, damage in one line."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.pickled_tensors import read_stored, tensor_at

TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool, torch.complex64),
)


def found_in(path: Path, alone: str | None = None) -> dict[str, Tensor]:
    with open_regular(path) as file:
        return {name: tensor_at(file, stored) for name, stored in read_stored(path, alone).items()}


def same(ours: Tensor, theirs: Tensor) -> bool:
    """In every bit."""
    flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs)]
    return (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) and torch.equal(*flat)


def drawn(rng: random.Random) -> Tensor:
    """Of any type; whole, or a view of a larger one with any strides."""
    shape = [rng.randint(0 if rng.random() < 0.1 else 1, 5) for _ in range(rng.randint(0, 4))]
    made = torch.randn([n + 2 for n in shape]) * 9
    value = made.to(torch.bool if rng.random() < 0.1 else rng.choice(TYPES))
    for dim, size in enumerate(shape):
        value = value.narrow(dim, rng.randint(0, 2), size)
    value = value.permute(rng.sample(range(len(shape)), len(shape)))
    return value.clone() if rng.random() < 0.5 else value


@pytest.mark.filterwarnings("ignore::UserWarning")  # complex numbers made real
@pytest.mark.parametrize("seed", range(40))
def test_tensors_are_those_of_torch_load(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    weights: dict[str, Any] = {f"block.{n}.weight": drawn(rng) for n in range(rng.randint(1, 12))}
    weights["tied"] = weights["block.0.weight"]
    weights["parameter"] = torch.nn.Parameter(torch.randn(3, 2), requires_grad=rng.random() < 0.5)
    weights |= {"step": 3, "name": "x", "rate": 0.5, "none": None, "sizes": torch.Size([1, 2]), "list": [1, [2]]}
    state = OrderedDict(weights) if rng.random() < 0.5 else weights
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    wrapped = rng.choice(
        (state, {"state_dict": state, "optimizer_states": [optimizer], "epoch": 2}, {"model": state, "opt": optimizer})
    )
    torch.save(wrapped, tmp_path / "a.pt", pickle_protocol=rng.choice((2, 3, 4, 5)))
    ours = found_in(tmp_path / "a.pt")
    theirs = torch.load(tmp_path / "a.pt", weights_only=False)
    theirs = theirs.get("state_dict", theirs.get("model", theirs))
    assert ours.keys() == {name for name, value in theirs.items() if isinstance(value, Tensor)}
    assert all(same(value, theirs[name]) for name, value in ours.items())
    assert all(value.is_contiguous() for value in ours.values())


def test_state_dicts_of_modules(tmp_path: Path) -> None:
    """With the notes that modules put on them."""
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3))
    torch.save(module.state_dict(), tmp_path / "a.pth")
    ours, theirs = found_in(tmp_path / "a.pth"), module.state_dict()
    assert list(ours) == list(theirs)
    assert all(same(value, theirs[name]) for name, value in ours.items())


def test_expanded_values_are_bounded(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1).expand(9)}, tmp_path / "a.pt")
    assert found_in(tmp_path / "a.pt")["a"].tolist() == [1.0] * 9
    torch.save({"a": torch.ones(1).expand(1 << 40)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="far more values than the file"):
        read_stored(tmp_path / "a.pt")


class Runs:
    """Unpickled, it would make a file."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("place", ["key", "value", "whole", "state"])
def test_no_code_runs(place: str, protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "it ran"
    for call in ((os.system, (f"touch '{made}'",)), (eval, (f"open({str(made)!r}, 'w')",)), (os.mkdir, (str(made),))):
        bad: Any = Runs(*call)
        held: dict[Any, Any] = {"key": {bad: 1}, "value": {"x": bad}, "whole": {}, "state": {"state_dict": bad}}[place]
        torch.save(
            bad if place == "whole" else {"w": torch.ones(2), **held}, tmp_path / "a.pt", pickle_protocol=protocol
        )
        if place == "whole":
            with pytest.raises(ValueError, match="objects of Python's"):
                found_in(tmp_path / "a.pt")
        else:
            assert found_in(tmp_path / "a.pt").keys() == {"w"}
        assert not made.exists()


def test_objects_of_training_are_left_out(tmp_path: Path) -> None:
    """A checkpoint of a training framework, whose classes are not here."""
    content = {
        "state_dict": {"w": torch.ones(2)},
        "callbacks": {Path: Runs(Path, ("x",))},
        "big": Runs(bytearray, (9,)),
    }
    torch.save(content, tmp_path / "a.ckpt")
    with zipfile.ZipFile(tmp_path / "a.ckpt") as old, zipfile.ZipFile(tmp_path / "b.ckpt", "w") as new:
        for name in old.namelist():
            record = old.read(name)
            new.writestr(name, record.replace(f"c{Path.__module__}\nPath\n".encode(), b"cnot_here\nThat\n"))
    with pytest.raises(ModuleNotFoundError):
        torch.load(tmp_path / "b.ckpt", weights_only=False)
    assert found_in(tmp_path / "b.ckpt")["w"].tolist() == [1.0, 1.0]


def rewritten(path: Path, method: int = zipfile.ZIP_STORED, **records: bytes) -> None:
    """An archive with other records."""
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    root = next(iter(content)).partition("/")[0]
    content |= {f"{root}/{name.replace('__', '.')}": value for name, value in records.items()}
    with zipfile.ZipFile(path, "w", method) as new:
        for name, value in content.items():
            new.writestr(name, value)


def test_what_is_no_dictionary_of_tensors_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"

    def refused(reason: str) -> None:
        with pytest.raises(ValueError, match=reason) as error:
            read_stored(path)
        assert "\n" not in str(error.value)

    for value, reason in (
        (torch.ones(2), "without a name"),
        (torch.nn.Linear(1, 1), "objects of Python's"),
        ([torch.ones(2)], "objects of Python's"),
        ({"a": 1}, "no tensors by name"),
        ({"ema": {"w": torch.ones(1)}, "model": {"w": torch.ones(1)}}, r"several sets of weights \(ema, model\)"),
        ({"a\nb": torch.ones(1)}, r"has the name 'a\\nb'"),
        ({"a\ud800": torch.ones(1)}, r"has the name 'a\\ud800'"),
    ):
        torch.save(value, path)
        refused(reason)
    torch.save({"w": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    refused("from before PyTorch 1.6")
    torch.save({"w": torch.zeros(1 << 20)}, path)
    rewritten(path, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 14, "a bomb"
    refused("compressed or encrypted")
    torch.save({"w": torch.ones(1)}, path)
    rewritten(path, byteorder=b"big")
    refused("big-endian")
    torch.save({"w": torch.ones(1)}, path)
    rewritten(path, constants__pkl=b"")
    refused("TorchScript")
    torch.save({"w": torch.ones(1)}, path)
    rewritten(path, data__pkl=bytes((16 << 20) + 1))
    refused("more than 16777216 bytes")
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("a/b.txt", "x")
    refused("not of torch.save")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no fifos here")
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(OSError, match="not a regular file"):
        read_stored(tmp_path / "a.pt")


def test_pickles_that_grow_do_not(tmp_path: Path) -> None:
    """Instructions that would make far more than they are, in an unpickler."""
    path = tmp_path / "a.pt"
    doubled = b"\x80\x02(" + b"q\0" + b"".join(b"h\0h\0\x86q\0" for _ in range(10**5)) + b"."
    huge = b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + (1 << 60).to_bytes(8, "little") + b"\x85R."
    memo = b"\x80\x02}r\xff\xff\xff\x7f."
    deep = b"\x80\x02" + b"]" * 10**5 + b"\x85" * 10**5 + b"."
    for content in (doubled, huge, memo, deep):
        torch.save({"w": torch.ones(1)}, path)
        rewritten(path, data__pkl=content)
        with pytest.raises(ValueError, match=r"objects of Python's|no tensors by name|damaged"):
            read_stored(path)


def claims(shape: tuple[Any, ...], strides: tuple[Any, ...], offset: Any, count: Any, key: str = "0") -> bytes:
    """A pickle of {"w": tensor} that says this of it."""

    class Storage:
        def __init__(self) -> None:
            self.told = ("storage", torch.FloatStorage, key, "cpu", count)

    class Made:
        def __reduce__(self) -> Any:
            args = (Storage(), offset, shape, strides, False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, args

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return value.told if isinstance(value, Storage) else None

    content = io.BytesIO()
    Pickler(content, 2).dump({"w": Made(), "ok": 1})
    return content.getvalue()


@pytest.mark.parametrize(
    ("claimed", "fits"),
    [
        (((4,), (1,), 0, 4), True),
        (((2, 2), (1, 2), 0, 4), True),
        (((2,), (3,), 0, 4), True),
        (((4,), (1,), 1, 4), False),
        (((2,), (4,), 0, 4), False),
        (((4,), (1,), 0, 3), False),
        (((5,), (1,), 0, 5), False),
        (((1 << 62, 1 << 62), (1, 1), 0, 4), False),
        (((4,), (-1,), 3, 4), False),
        (((4,), (1,), -1, 4), False),
        (((-4,), (1,), 0, 4), False),
        (((4, 1), (1,), 0, 4), False),
        (((4.0,), (1,), 0, 4), False),
        (((True,), (1,), 0, 4), False),
        (((4,), (1,), 0, -4), False),
        (((4,), (1,), 0, 4, "../byteorder"), False),
    ],
)
def test_tensors_lie_inside_their_storage(claimed: Any, fits: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.arange(4.0)}, path)
    rewritten(path, data__pkl=claims(*claimed))
    if fits:
        shape, strides, offset = claimed[:3]
        assert torch.equal(found_in(path)["w"], torch.arange(4.0).as_strided(shape, strides, offset))
    else:
        with pytest.raises(ValueError, match="no tensors by name"):
            read_stored(path)


def test_damage_is_one_line_or_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"state_dict": {f"w{n}": torch.randn(3, n + 1) for n in range(4)}, "epoch": 1}, path)
    whole, refused = path.read_bytes(), 0
    for seed in range(600):
        rng = random.Random(seed)
        content = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.randrange(len(content))] if rng.random() < 0.3 else content)
        try:
            found = found_in(path)
        except ValueError as error:
            refused += 1
            told = str(error)
        else:
            told = "".join(type(value).__name__ for value in found.values())
        assert re.fullmatch(r"[ -~]+", told), "one line"
    assert refused > 100
