"""What goes to cuDNN's fused engines and what does not; what they compute is tested on a GPU (``tests/gpu``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from tvae.kernels import Kernels, Unsupported, cuda, cudnn_frontend, cudnn_sum, registry
from tvae.kernels.cuda import hopper_conv
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.prebuild import rehearsal
from tvae.kernels.registry import Failed

Given = dict[str, Any]


def picture(channels: int = 32, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(1, channels, 6, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)


def sums() -> Given:
    """A call that is taken."""
    weight = torch.zeros(32, 32, 3, 3, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    bias = torch.zeros(32, dtype=torch.bfloat16)
    return {"x": picture(), "weight": weight, "residual": picture(), "bias": bias, "pads": (1, 1, 1, 1), "y": picture()}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for cuDNN, which has no plan: what it was asked for."""
    found: list[Any] = []

    def plan(wanted: Any) -> str:
        found.append(wanted)
        return "cuDNN has no plan: none today"

    monkeypatch.setattr(cudnn_sum, "missing", lambda: None)
    monkeypatch.setattr(cudnn_sum, "_plan", plan)
    return found


class NotSupported(Exception):
    """Stands in for cuDNN's own."""


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for cuDNN's, which has a plan that works in 96 bytes."""
    made = MagicMock()
    made.tensor.side_effect = lambda dim, stride, data_type: (tuple(dim), tuple(stride))
    made.get_workspace_size.return_value = 96
    library = MagicMock(cudnnGraphNotSupportedError=NotSupported, pygraph=MagicMock(return_value=made))
    monkeypatch.setitem(sys.modules, "cudnn", library)
    monkeypatch.setattr(cudnn_frontend, "handle", lambda device: f"of {device}")
    made.library = library
    return made


def wanted(width: int) -> Any:
    """A sum of which top and bottom rows, left and right columns see zeros unlike."""
    maps = tuple(cudnn_frontend.Map((1, c, 6, width), (c * 6 * width, 1, width * c, c)) for c in (32, 32, 48, 48))
    return cudnn_sum._Sum(torch.bfloat16, 1, (0, 1, 2, 3), maps)


def test_the_library_is_told_of_the_sum(graph: Any) -> None:
    found = cudnn_sum._plan(wanted(5))
    assert isinstance(found, cudnn_sum._Plan)
    assert graph.library.pygraph.call_args.kwargs["handle"] == "of cuda:1"
    assert graph.library.pygraph.call_args.kwargs["compute_data_type"] == graph.library.data_type.FLOAT
    borders = graph.conv_fprop.call_args.kwargs
    assert (borders["pre_padding"], borders["post_padding"]) == ([2, 0], [3, 1])
    x, weight, residual, bias, y = found.tensors
    assert (x, weight, residual) == tuple((m.shape, m.strides) for m in wanted(5).maps[:3])
    assert bias == ((1, 48, 1, 1), (48, 1, 48, 48))
    assert [call.kwargs for call in graph.add.call_args_list] == [
        {"a": graph.conv_fprop.return_value, "b": residual},
        {"a": graph.add.return_value, "b": bias},
    ]
    assert y is graph.add.return_value
    assert found.workspace == 96


def test_what_the_library_does_not_take_is_said(graph: Any) -> None:
    graph.check_support.side_effect = NotSupported("no engine\nand so on")
    assert cudnn_sum._plan(wanted(7)) == "cuDNN has no plan: no engine"


def test_a_plan_is_asked_for_by_shapes_and_places(asked: list[Any]) -> None:
    given = sums()
    with pytest.raises(Unsupported, match="none today"):
        cudnn_sum.conv_add(**given)
    (wanted,) = asked
    assert wanted.pads == (1, 1, 1, 1)
    assert [m.strides for m in wanted.maps] == [given[name].stride() for name in ("x", "weight", "residual", "y")]
    assert hash(wanted)


def same(given: Given) -> None:
    given["y"] = given["residual"]


def rows_beside_it(given: Given) -> None:
    both = torch.cat([picture(), picture()], 2)
    given["residual"], given["y"] = both[:, :, :6], both[:, :, 6:]


REFUSED: dict[str, Callable[[Given], Any]] = {
    "no bias": lambda given: given.update(bias=None),
    "maps of torch.float32": lambda given: given.update(
        {n: given[n].float() for n in ("x", "weight", "residual", "y")}
    ),
    "unlike type": lambda given: given.update(y=picture(dtype=torch.float16)),
    "not innermost": lambda given: given.update(x=picture().contiguous()),
    "multiples of 16": lambda given: given.update(x=picture(24)),
    "over the residual": same,
    "written over the residual": rows_beside_it,
    r"2\^31": lambda given: given.update(x=picture()[:, :, :1, :1].expand(1, 32, 1 << 14, 1 << 13)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_before_anything_is_written(words: str, asked: list[Any]) -> None:
    given = sums()
    REFUSED[words](given)
    with pytest.raises(Unsupported, match=words):
        cudnn_sum.conv_add(**given)
    assert not asked


def test_a_rehearsal_is_refused_what_the_run_would_be(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the run would ask for kernels of the level below that nobody has built; plans are of one size. Statistics are
    asked for whatever is refused: the run may have a plan for it, or write it elsewhere than over the residual."""
    module = import_module("tvae.kernels.cuda.conv_add")

    def call(given: Given, stats: bool = False) -> Any:
        out = given.pop("y")
        return module.conv_add(**given, out=out, stats=stats)

    counted: list[Tensor] = []
    monkeypatch.setattr(module, "_statistics", lambda y: counted.append(y) or "parts")
    with rehearsal():
        assert call(sums())[1] is None
        given = sums()
        same(given)
        with pytest.raises(Unsupported, match="over the residual"):
            call(given, stats=True)
        assert len(counted) == 1
        with pytest.raises(Unsupported, match="one side"):
            call({**sums(), "pads": (1, 1, 1, 0)}, stats=True)
        assert len(counted) == 2
        given = sums()
        y, parts = call({**given}, stats=True)
        assert (y is given["y"], parts) == (True, "parts")
    assert len(counted) == 3
    assert not asked


def test_statistics_are_the_first_levels_that_takes_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("tvae.kernels.cuda.conv_add")

    def refused(_y: Tensor) -> Any:
        raise Unsupported("not today")

    given: dict[str, Any] = {"triton": lambda _y: "triton", "cuda": lambda _y: "cuda"}
    monkeypatch.setattr(module, "implementation", lambda operation, level: {"group_stats": given[level]}[operation])
    y = picture()
    assert module._statistics(y) == "triton"
    for missing in (refused, None):
        given["triton"] = missing
        assert module._statistics(y) == "cuda"
    given["cuda"] = refused
    assert torch.equal(module._statistics(y), group_stats(y))


@pytest.mark.parametrize(("operations", "built"), [({"conv_add", "sample"}, 0), ({"conv_add", "norm_act"}, 1)])
def test_its_statistics_are_not_built_beforehand(
    operations: set[str], built: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without such sums would wait for them in vain."""
    log: list[Any] = []
    monkeypatch.setattr(cuda.norm, "prepare", lambda *args: log.append(args))
    cuda.prepare(operations, torch.bfloat16, 0)
    assert log == built * [(torch.bfloat16, 0)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a card")
def test_without_a_card_it_is_not_asked_again() -> None:
    assert cudnn_frontend.missing() == "no NVIDIA GPU"
    with pytest.raises(Failed, match="no NVIDIA GPU"):
        cudnn_sum.conv_add(**sums())


def test_without_the_frontend_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(cudnn_frontend, "missing", cudnn_frontend.missing.__wrapped__)
    monkeypatch.setattr(cudnn_frontend, "find_spec", lambda _name: None)
    assert cuda.NEEDS["conv_add"]() == "nvidia-cudnn-frontend is not installed"
    monkeypatch.setattr(cudnn_frontend, "missing", lambda: None)
    assert cuda.NEEDS["conv_add"]() is None
    assert cuda.NEEDS["enlarge_conv"] is hopper_conv.missing  # the frontend has nothing for it
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert cuda.NEEDS["conv_add"]() == cuda.missing.__wrapped__() == "the GPU is older than compute capability 8.0"


def test_its_level_is_not_asked_for_what_it_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading NVRTC for it took half a second of a first result."""

    def loads() -> str:
        raise AssertionError("nobody needs NVRTC")

    monkeypatch.setattr(cuda, "missing", loads)
    monkeypatch.setitem(cuda.NEEDS, "conv_add", lambda: None)
    registry.why_missing.cache_clear()
    try:
        assert registry.implementation("conv_add", "cuda") is cuda.conv_add
        kernels = Kernels({"conv_add": "cuda"})
        kernels.prepare(torch.bfloat16, 0)
        assert kernels._chain("conv_add")[0][0] == "cuda"
        with pytest.raises(AssertionError, match="NVRTC"):
            registry.why_missing("cuda", "norm_act")
    finally:
        registry.why_missing.cache_clear()
