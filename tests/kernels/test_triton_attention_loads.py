"""What the first attention loads for later ones of other sizes, which would be in the way of their results."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)

from tvae.kernels.prebuild import asked
from tvae.kernels.triton import attention, attention_launches
from tvae.kernels.triton.attention import attend_frames
from tvae.kernels.triton.attention_plan import Plan, Scratch
from tvae.kernels.triton.repeated import Repeated

PLAN = Plan(2, 32, 32, 32, 4, 2, 1, False, False, group=2, block=64, chunk=96)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded yet, and nothing is computed."""
    monkeypatch.setattr(Repeated, "__call__", lambda *_: None)
    monkeypatch.setattr(attention, "add_product", lambda *_: None)
    monkeypatch.setattr(attention_launches, "INTERPRETED", False)
    monkeypatch.setattr(attention_launches, "_loaded", set())


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.bfloat16)


@pytest.mark.parametrize("n", [96, 101])
def test_kernels_of_other_numbers_of_keys_are_loaded_ahead(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, by threads: none waits for that where tiles lack keys, or lack none, for the first time."""
    ran: list[tuple[str, bool]] = []
    ahead: list[tuple[str, bool]] = []

    def launched(self: Any, *_tensors: Tensor) -> None:
        if "MASK" in self._options:
            (ran if asked() is None else ahead).append((self._kernel.fn.__name__, self._options["MASK"]))

    monkeypatch.setattr(Repeated, "__call__", launched)
    products: list[int] = []
    monkeypatch.setattr(attention_launches, "add_product", lambda wide, *_: products.append(len(wide)))
    for _ in range(2):
        x = noise(n, 64)
        attend_frames(*(x[None, None],) * 3, 0.3, False, PLAN)
    assert (n % PLAN.columns != 0) in {mask for _, mask in ran}
    names = ("weights_kernel", "repair_kernel")
    assert sorted(ahead) == sorted((name, mask) for name in names for mask in (False, True))
    assert sorted(products) == [40, 40, 48, 48, 56, 56]


def test_products_of_higher_blocks_are_loaded_ahead_in_the_memory_that_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first size may have lower blocks than later ones. Weights and results lie apart, and none beyond the end."""
    products: list[tuple[Tensor, Tensor, Tensor]] = []
    monkeypatch.setattr(attention_launches, "add_product", lambda wide, p, v, _first: products.append((wide, p, v)))
    q, k = noise(40, 64), noise(800, 64)
    plan = replace(PLAN, chunk=960)
    scratch = Scratch(40, 800, 64, q.device, plan)
    attention_launches.load_others(q, k, k.half(), scratch, 0.3, plan)
    assert sorted(len(wide) for wide, *_ in products) == [48, 48, 56, 56, 64, 64]
    begin = scratch.weights.data_ptr()
    end = begin + scratch.weights.nbytes
    for wide, p, v in products:
        assert wide.shape == (len(p), 64)
        assert wide.dtype == torch.float32
        assert p.shape[1] == len(v) > 0
        assert begin <= wide.data_ptr() < wide.data_ptr() + wide.nbytes <= p.data_ptr()
        assert p.data_ptr() + p.nbytes <= end
        assert wide.is_contiguous()
        assert p.is_contiguous()
        assert p.data_ptr() % 16 == p.stride(0) * p.itemsize % 16 == 0


def test_of_too_little_memory_no_higher_block_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[int] = []
    monkeypatch.setattr(attention_launches, "add_product", lambda wide, *_: heights.append(len(wide)))
    q, k = noise(48, 64), noise(64, 64)
    attention_launches.load_others(q, k, k.half(), Scratch(48, 64, 64, q.device, PLAN), 0.3, PLAN)
    assert heights == [40, 40]
