"""Which passes a captured graph goes through (those that pay at its levels, on its device, in its type), and what is
traced to make one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from tvae.kernels import Kernels
from tvae.kernels.cuda import hopper_conv
from tvae.pipeline import TiledVAE
from tvae.pipeline.session import captures, new_graph


def passes(dtype: torch.dtype, device: str, level: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of ``optimise`` where the level of convolutions is this one, on a machine that has them all."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(captures, "optimise", lambda graph, **options: given.update(options) or graph)
    monkeypatch.setattr(captures, "why_missing", lambda *_: None)
    kernels = Kernels({"default": "triton", "conv_add": level, "enlarge_conv": "native"})
    of = captures.Captures("decode", nn.Identity, None, kernels, None, None)
    of._optimised("graph", [SimpleNamespace(dtype=dtype, device=torch.device(device))])  # type: ignore[arg-type, list-item]
    return given


@pytest.mark.parametrize(
    ("dtype", "device", "level", "fused"),
    [
        (torch.bfloat16, "cuda", "cuda", True),
        (torch.float16, "cuda", "cuda", True),
        (torch.float32, "cuda", "cuda", False),
        (torch.bfloat16, "cpu", "cuda", False),
        (torch.bfloat16, "cuda", "triton", False),
    ],
)
def test_convolutions_add_and_sum_where_their_level_does(
    dtype: torch.dtype, device: str, level: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = passes(dtype, device, level, monkeypatch)
    assert found["epilogue"] == fused
    assert (found["summed"] is not None) == fused


@pytest.mark.parametrize(("missing", "takes"), [(None, True), ("not a GPU of compute capability 9.0", False)])
def test_what_sums_is_asked_of_the_level(missing: str | None, takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    summed = passes(torch.bfloat16, "cuda", "cuda", monkeypatch)["summed"]
    monkeypatch.setattr("tvae.kernels.registry.why_missing", lambda *_: None)
    monkeypatch.setattr(hopper_conv, "missing", lambda: missing)
    assert [summed("conv_add", 128, 64, 3), summed("conv_add", 96, 64, 3)] == [takes, False]
    assert not summed("enlarge_conv", 128, 64, 3)  # at level native here


def test_a_level_without_such_a_kernel_sums_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvae.kernels.registry.why_missing", lambda *_: None)
    monkeypatch.setattr(hopper_conv, "missing", lambda: None)
    assert not Kernels({"conv_add": "native"}).sums("conv_add", 128, 64, 3)
    assert Kernels({"enlarge_conv": "cuda"}).sums("enlarge_conv", 128, 64, 3)
    monkeypatch.setattr("tvae.kernels.registry.why_missing", lambda *_: "no card")
    assert not Kernels({"conv_add": "cuda"}).sums("conv_add", 128, 64, 3)


@pytest.mark.slow
def test_what_is_traced_takes_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exporter's reference cycles keep its examples: the caches of a step of a large clip are gigabytes."""
    seen: list[int] = []
    traced = new_graph.capture

    def capture(module: nn.Module, fn: Any, inputs: Sequence[Tensor], *more: Any) -> Any:
        seen.extend(t.untyped_storage().nbytes() for t in inputs)
        assert all(t.is_contiguous() for t in inputs)
        return traced(module, fn, inputs, *more)

    monkeypatch.setattr(new_graph, "capture", capture)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.manual_seed(0)
    model = AutoencoderKLWan(base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1).eval()
    z = torch.randn(1, 4, 3, 6, 8).to(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        torch.testing.assert_close(TiledVAE(model, "cpu").decode(z).sample, model.decode(z).sample, rtol=0, atol=1e-5)
    assert len(seen) > 2  # a chunk and its caches
    assert not any(seen)
