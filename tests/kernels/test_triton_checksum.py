"""Checksums of weights in Triton against the definition, by its interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
from checksum_inputs import CHANGES, TYPES, laid_out, random_bytes, random_of
from triton.errors import TritonError

from tvae.kernels.checksum import WeightChecksums
from tvae.kernels.registry import Failed
from tvae.kernels.triton import checksum
from tvae.kernels.triton.checksum import FusedSums, Tuning

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def small_blocks() -> Iterator[None]:
    """So that some bytes are many blocks, each of one part or of several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "TUNING", Tuning(words=64, warps=1))
        yield


def both(*tensors: Tensor) -> tuple[list[int], list[int]]:
    """The sums of the definition and of the kernel."""
    whole = WeightChecksums(tensors)
    whole._fused = None
    expected = whole().tolist()
    found = torch.full((len(tensors),), 7, device=tensors[0].device if tensors else DEVICE)
    FusedSums(whole._data)(found)
    return expected, found.tolist()


@pytest.mark.parametrize("tuning", [Tuning(64, 1), checksum.TUNING], ids=str)
def test_every_layout(tuning: Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "TUNING", tuning)
    expected, found = both(*(t for t, _ in laid_out(DEVICE).values()))
    assert found == expected


@pytest.mark.usefixtures("small_blocks")
def test_every_type() -> None:
    expected, found = both(*(random_of(dtype, 7, 33).to(DEVICE) for dtype in TYPES))
    assert found == expected


def test_blocks_of_the_real_size() -> None:
    size = checksum.TUNING.words * 8
    data = random_bytes(2 * size + 99).to(DEVICE)
    ends = (size - 8, size, size + 1, 2 * size)
    expected, found = both(*(data[:end] for end in ends), data[16 : 16 + size], data[8 : 8 + size])
    assert found == expected


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    x = torch.randn(24, 24, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    before = both(x)[1]
    CHANGES[change](x)
    assert both(x)[1] != before


def test_without_bytes_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "launch", None)
    assert both() == ([], [])
    assert both(torch.ones(0, device=DEVICE), torch.ones(3, 0, device=DEVICE))[1] == [0, 0]


def test_blocks_read_by_bytes_come_first() -> None:
    """They last longest: at the end, everything else would wait for them."""
    size = checksum.TUNING.words * 8
    table = FusedSums([random_bytes(2 * size + 5), random_bytes(size), random_bytes(9)])._table
    assert table[:, 1].tolist() == [5, 9, size, size, size]
    assert table[:, 2].tolist() == [0, 2, 0, 0, 1]


class Sizes(TorchDispatchMode):
    """Numbers of elements that operations give."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found += [t.numel() for t in tree_leaves(result) if isinstance(t, Tensor)]
        return result


def test_a_table_of_many_blocks_takes_none_of_pytorchs_threads() -> None:
    """It is made at each call that processes share: their threads would wait for each other."""
    data = torch.empty(64 << 20, dtype=torch.uint8)
    with Sizes() as sizes:
        table = FusedSums([data])._table
    assert len(table) == (64 << 20) // (checksum.TUNING.words * 8)
    assert sum(n > 1000 for n in sizes.found) <= 2, "the table itself, and its copy to a GPU"


def test_a_kernel_that_cannot_be_built_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_args: Any, **_options: Any) -> None:
        raise TritonError("no such target\nand more")

    monkeypatch.setattr(checksum, "launch", launch)
    monkeypatch.setattr(checksum, "INTERPRETED", False)
    x = random_bytes(9).to(DEVICE)
    with pytest.raises(Failed, match=r"cannot build it: no such target$"):
        FusedSums([x])(torch.zeros(1, dtype=torch.int64, device=DEVICE))
