"""Law 7: a call gives the numbers of the model as it is at that call, whatever was kept from earlier ones."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from changes import CHANGES, lora, patched
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import TvaeError, UsageError

KL = TINY["AutoencoderKL"]
SIDES = ("decode", "encode")
CLOSE = 1e-5


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unchanged model's graphs."""
    folder = tmp_path_factory.mktemp("captured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        for side in SIDES:
            getattr(TiledVAE(KL.build(), "cpu", strip=4), side)(KL.input(side, 9, 6))
    return folder


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, captured: Path) -> None:
    shutil.copytree(captured, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def own(model: Any, side: str, x: Tensor) -> Tensor:
    """The model's own call, untiled."""
    tiling = getattr(model, "use_tiling", False)
    model.use_tiling = False
    with torch.no_grad():
        found = result(getattr(model, side)(x))
    model.use_tiling = tiling
    return found


def agrees(tiled: Any, model: Any, side: str, x: Tensor) -> None:
    assert relative_l2(result(getattr(tiled, side)(x)), own(model, side, x)) <= CLOSE


QUICK = [
    *((name, "decode") for name in ("hook", "layer_exchanged", "method_patched")),
    *((name, "encode") for name in ("written", "there_and_back")),
]
"""Every change is told from the model before in tests/pipeline/session/identity, too."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "side"), slow_but(QUICK, product(CHANGES, SIDES)))
def test_a_change_is_seen(name: str, side: str) -> None:
    """By the object that was used before, and by a new one beside what the first left on disk."""
    model, x = KL.build(), KL.input(side, 9, 6)
    options: dict[str, Any] = {"strip": 4, "allow_whole": name in ("circular", "processor")}  # no rules for theirs
    tiled = TiledVAE(model, "cpu", **options)
    agrees(tiled, model, side, x)
    before = own(model, side, x)
    CHANGES[name](model)
    if name not in ("tiling", "there_and_back"):
        assert relative_l2(own(model, side, x), before) > 1e-3, "the change shows in the model's own numbers"
    agrees(tiled, model, side, x)
    agrees(TiledVAE(model, "cpu", **options), model, side, x)
    untouched = KL.build()
    agrees(TiledVAE(untouched, "cpu", strip=4), untouched, side, x)


@pytest.mark.long
@pytest.mark.parametrize("side", slow_but(["decode"], SIDES))
def test_patched_classes_and_functions_apply_after_refresh(side: str) -> None:
    from diffusers.models import resnet

    model, x = KL.build(), KL.input(side, 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, side, x)
    plain = resnet.ResnetBlock2D.forward
    for place, name, function in (
        (resnet.ResnetBlock2D, "forward", lambda self, *args, **kwargs: plain(self, *args, **kwargs) * 1.1),
        (nn.functional, "group_norm", lambda x, *_args, **_kwargs: x * 1.1),
    ):
        with patched(place, name, function):
            tiled.refresh()
            agrees(tiled, model, side, x)
        tiled.refresh()
        agrees(tiled, model, side, x)


@pytest.mark.slow
def test_low_rank_adapters() -> None:
    """peft's own: their scale, on and off, merged and not, another alpha."""
    x = KL.input("decode", 9, 6)
    model = lora(KL.build())
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, "decode", x)
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    steps: list[Callable[[Any], object]] = [
        lambda m: m.set_scale("default", 3.0),
        lambda m: m.enable_adapters(False),
        lambda m: m.enable_adapters(True),
        lambda m: m.merge(),
        lambda m: m.unmerge(),
        lambda m: m.scaling.__setitem__("default", 0.1),
    ]
    for step in steps:
        for layer in layers:
            step(layer)
        agrees(tiled, model, "decode", x)
        agrees(TiledVAE(model, "cpu", strip=4), model, "decode", x)
    other = lora(KL.build(), alpha=32)
    agrees(TiledVAE(other, "cpu", strip=4), other, "decode", x)


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = KL.build()
    x = KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, "decode", x)
    with torch.inference_mode():
        for weight in model.parameters():
            weight.mul_(1.01)
        agrees(tiled, model, "decode", x)
    agrees(tiled, model, "decode", x)


def test_compiled_submodules_compute_what_they_compute() -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    plain = copy.deepcopy(model)
    model.decoder.mid_block = torch.compile(model.decoder.mid_block, backend="eager")
    agrees(TiledVAE(model, "cpu", strip=4), plain, "decode", x)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_begin_afresh(copied: Callable[[Any], Any]) -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, "decode", x)
    other = copied(tiled)
    assert (other._strip, other._preset_name) == (4, "cpu")
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.01)
    agrees(other, other.vae, "decode", x)
    agrees(tiled, tiled.vae, "decode", x)


class Stateful(nn.Module):
    """Decodes with something of the call before."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv2d(4, 3, 3, padding=1), kind
        self.prev: Tensor | None = None
        self.count, self.seen, self.rows = 0, list[int](), 0
        self.register_buffer("total", torch.zeros(()))

    def encode(self, x: Tensor) -> Tensor:
        return x[:, :1]

    def decode(self, z: Tensor) -> Tensor:
        y = self.conv(z)
        if self.kind == "tensor":
            last, self.prev = self.prev, y
            return y if last is None else y + last
        if self.kind == "count":
            self.count += 1
            return y * self.count
        if self.kind == "list":
            self.seen.append(1)
            return y * len(self.seen)
        if self.kind == "size":
            self.rows = self.rows + y.shape[2]
            return y * self.rows
        self.total += 1.0
        return y + self.total


@pytest.mark.parametrize(
    ("kind", "named"), [("tensor", "prev"), ("count", "count"), ("list", "seen"), ("size", "rows"), ("buffer", "total")]
)
def test_state_between_calls_is_refused_by_name(kind: str, named: str) -> None:
    model, z = Stateful(kind).eval(), torch.randn(1, 4, 8, 8)
    with pytest.raises(TvaeError, match=named):
        TiledVAE(model, "cpu").decode(z)
    assert (model.prev, model.count, model.seen, model.rows, float(model.total)) == (None, 0, [], 0, 0.0)


class Scratch(nn.Module):
    """Writes attributes in every call that no call reads from another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        return x[:, :1]

    def decode(self, z: Tensor) -> Tensor:
        self.sizes = [1, 2]
        self.last = self.conv(z)
        self.last_shape = self.last.shape
        return self.last * self.sizes[1] + torch.tensor([[[[0.5, -1.0]]]]).sum()


def test_scratch_attributes_are_no_state() -> None:
    model, z = Scratch().eval(), torch.randn(1, 4, 8, 8)
    tiled = TiledVAE(model, "cpu", strip=2)
    for _ in range(2):
        with torch.no_grad():
            expected = copy.deepcopy(model).decode(z)
        assert relative_l2(tiled.decode(z), expected) <= CLOSE
    assert not hasattr(model, "last")


def test_a_call_under_autocast_spoils_no_other() -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert tiled.decode(x).sample.dtype == torch.float32
    agrees(tiled, model, "decode", x)
    agrees(TiledVAE(model, "cpu", strip=4), model, "decode", x)


def test_a_call_inside_a_transform_is_refused() -> None:
    tiled = TiledVAE(KL.build(), "cpu", strip=4)
    with pytest.raises(UsageError, match=r"torch\.func"):
        torch.func.vmap(lambda z: tiled.decode(z).sample)(KL.input("decode", 9, 6)[None])


def test_other_default_types_are_other_captures() -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    torch.set_default_dtype(torch.float64)
    try:
        agrees(tiled, model, "decode", x)
    finally:
        torch.set_default_dtype(torch.float32)
    agrees(tiled, model, "decode", x)


def test_refresh_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = KL.build(), KL.input("decode", 9, 6)
    tiled = TiledVAE(model, "cpu", strip=4)
    agrees(tiled, model, "decode", x)
    tiled.refresh()
    assert not tiled._sessions
    agrees(tiled, model, "decode", x)
