"""Amounts of memory as people write them, and what of a budget is left for buffers."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.engine.run import host_memory
from tvae.pipeline.errors import PlanError, UsageError
from tvae.pipeline.memory import limits as budget
from tvae.pipeline.memory.allocator_bytes import AllocatorBytes
from tvae.pipeline.memory.amount import parse_size
from tvae.pipeline.memory.limits import Limits, activation_budget, check_budget, overhead, tells_segments

CPU, CUDA, OTHER = torch.device("cpu"), torch.device("cuda", 0), torch.device("meta")
MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 1024**3),
        ("8GB", 8 * 1000**3),
        ("8 GiB", 8 * 1024**3),
        ("  8  gib ", 8 * 1024**3),
        ("8gb", 8 * 1000**3),
        ("500MiB", 500 * 1024**2),
        ("500 MB", 500 * 1000**2),
        ("1.5GiB", 3 * 2**29),
        ("0.5MB", 500_000),
        ("3KiB", 3072),
        ("3kB", 3000),
        ("2TiB", 2 * 1024**4),
        ("2TB", 2 * 1000**4),
        ("123", 123),
        ("123B", 123),
        (123, 123),
        ("1.9B", 1),
    ],
)
def test_amounts(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["0", 0, "0GiB", "0.0", "0.4B"])
def test_nothing_is_no_budget(text: str | int) -> None:
    with pytest.raises(UsageError, match="is too small; give at least 1 byte"):
        parse_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        -1,
        "-8GiB",
        "8XB",
        "8GiBs",
        "GiB",
        "8G",
        "eight",
        "8,5GiB",
        "1e9",
        "8 Gi B",
        "+8GiB",
        ".5GiB",
        "nan",
    ],
)
def test_nonsense_is_refused_in_one_line(text: str | int) -> None:
    with pytest.raises(UsageError, match="is not an amount of memory; write 8GiB") as caught:
        parse_size(text)
    assert f"'{text}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(count=st.integers(1, 10**6), unit=st.sampled_from(["", "B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"]))
def test_binary_units_are_the_larger_ones(count: int, unit: str) -> None:
    """An independent table: the power is the letter's place, the base is 1024 with an i."""
    power = " kmgt".index(unit[0].lower()) if len(unit) > 1 else 0
    assert parse_size(f"{count}{unit}") == count * (1024 if "i" in unit else 1000) ** power


def test_heights_to_try() -> None:
    assert Limits(16).strips() == [16, 8, 4, 2, 1]
    assert Limits(5).strips() == [5, 2, 1]
    assert Limits(1).strips() == [1]
    assert Limits(16, fixed=True).strips() == [16]
    assert Limits(16).of_frames().strips() == [2, 1]
    assert Limits(2).of_frames().strips() == [2, 1]
    assert Limits(16, fixed=True).of_frames().strips() == [16]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A CPU with so much memory available, and a process of this size."""

    def set_(available: int | None, resident: int) -> None:
        monkeypatch.setattr(budget, "available_bytes", lambda: available)
        monkeypatch.setattr(budget, "_resident", lambda: resident)

    return set_


def left_of(named: int | None, device: torch.device = CPU, weights: int = 0) -> int | None:
    return activation_budget(device, named, 0.5, overhead(device, weights))


def test_without_a_name_it_is_a_share_of_what_is_free(machine: Any) -> None:
    machine(10 * GIB, GIB)
    assert left_of(None) == 5 * GIB
    machine(None, 0)
    assert left_of(None) is None
    assert left_of(None, OTHER) is None


def test_what_the_process_holds_is_not_for_buffers(machine: Any) -> None:
    machine(10 * GIB, 300 * MIB)
    left = left_of(2 * GIB, weights=50 * MIB)
    assert left is not None
    assert GIB < left < 2 * GIB - 350 * MIB
    machine(10 * GIB, 700 * MIB)
    assert left_of(2 * GIB, weights=50 * MIB) == left - 400 * MIB


def test_weights_count_once(machine: Any) -> None:
    machine(10 * GIB, 300 * MIB)
    assert overhead(CPU, 50 * MIB, to_come=0).left(2 * GIB) == overhead(CPU, 50 * MIB).left(2 * GIB) + 50 * MIB


def test_a_system_that_does_not_tell(machine: Any) -> None:
    """Then nothing is too much, and the process is taken for one that has torch and the weights."""
    machine(None, 0)
    left = left_of(8 * GIB, weights=50 * MIB)
    assert left is not None
    assert left_of(8 * GIB, weights=90 * MIB) == left - 40 * MIB
    assert left < 8 * GIB - 500 * MIB
    check_budget(CPU, 1 << 60)


def test_proc_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/statm").exists():
        assert (budget.available_bytes(), budget._resident()) == (None, 0)
        return
    before = budget._resident()
    with mmap.mmap(-1, 32 * MIB) as ballast:  # fresh pages: the heap may have some that were freed
        ballast.write(b"\1" * (32 * MIB))
        assert 16 * MIB < budget._resident() - before < 80 * MIB
    available = budget.available_bytes()
    assert available is not None
    assert MIB < available < 1 << 50

    def missing(*_args: Any, **_options: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(host_memory, "open", missing, raising=False)
    assert (budget.available_bytes(), budget._resident()) == (None, 0)


def test_more_than_there_is(machine: Any) -> None:
    machine(10 * GIB, GIB)
    check_budget(CPU, 11 * GIB)
    for refused in (lambda: check_budget(CPU, 11 * GIB + 1), lambda: left_of(12 * GIB)):
        with pytest.raises(PlanError, match=r"is more than cpu has \(11.00 GiB\)") as caught:
            refused()
        assert "\n" not in str(caught.value)


def test_less_than_the_process_needs_leaves_less_than_nothing(machine: Any) -> None:
    machine(10 * GIB, 300 * MIB)
    for named in (1, MIB, 300 * MIB):
        left = left_of(named)
        assert left is not None
        assert left < 0


@given(
    wanted=st.integers(-(10 * GIB), 100 * GIB),
    resident=st.integers(0, 4 * GIB),
    weights=st.integers(0, 4 * GIB),
    device=st.sampled_from([CPU, OTHER]),
)
def test_a_budget_that_is_named_holds_what_was_asked_for(
    wanted: int, resident: int, weights: int, device: torch.device
) -> None:
    """``named`` undoes ``left``, and names no byte too many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "_resident", lambda: resident)
        taken = overhead(device, weights)
    named = taken.named(wanted)
    assert taken.enough(wanted) == named + (16 * MIB if device == CPU else 0) > 0, "a process is never quite the same"
    assert taken.left(named) >= wanted
    assert named == 1 or taken.left(named - 4) < wanted


class Card:
    """24 GiB, of which others have 9: tensors of this process, what a recording keeps, what the allocator caches."""

    tensors, kept, cached = 3 * GIB, 0, 2 * GIB

    def reserved(self, _device: torch.device) -> int:
        return self.tensors + self.kept + self.cached

    def memory(self, device: torch.device) -> tuple[int, int]:
        return 15 * GIB - self.reserved(device), 24 * GIB

    def empty(self) -> None:
        self.cached = 0

    def segments(self, _pool: Any = None) -> list[dict[str, Any]]:
        cache, graph, sizes = (0, 0), (0, 1), ("device", "segment_pool_id", "total_size", "allocated_size")
        found = [(0, cache, self.tensors + self.cached, self.tensors), (1, graph, GIB, 0)]
        return [dict(zip(sizes, s, strict=True)) for s in (*found, (0, graph, self.kept + MIB, MIB))]


def test_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its caching allocator holds and nobody uses is free; weights, context and workspaces are not."""
    card = Card()
    for name, said in (("mem_get_info", card.memory), ("memory_reserved", card.reserved), ("empty_cache", card.empty)):
        monkeypatch.setattr(torch.cuda, name, said)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: card.tensors)
    monkeypatch.setattr(budget, "allocator_bytes", lambda device: AllocatorBytes(card.reserved(device), card.tensors))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", card.segments)
    assert activation_budget(CUDA, None, 0.5, overhead(OTHER, 0)) == 6 * GIB
    left = left_of(8 * GIB, CUDA, GIB)
    assert left is not None
    assert 3.5 * GIB < left < 4.1 * GIB, "what other tensors take is not for buffers"
    assert card.cached == 0, "what is given back leaves no holes"
    assert overhead(CUDA, GIB).named(left) == pytest.approx(8 * GIB, abs=4)
    assert overhead(CUDA, GIB).enough(left) == pytest.approx(8 * GIB + 32 * MIB, abs=4), (
        "pages that tensors lie in vary"
    )
    assert overhead(CUDA, GIB, inputs=2 * GIB).left(8 * GIB) == left + 2 * GIB, "inputs are counted as buffers"
    assert overhead(CUDA, 5 * GIB).left(8 * GIB) == left - 2 * GIB, "weights that are still to come"
    assert overhead(CUDA, GIB, to_come=0).left(8 * GIB) == left, "the weights are among the tensors"
    assert overhead(CUDA, GIB, to_come=GIB).left(8 * GIB) == pytest.approx(left - GIB, abs=22 * MIB), (
        "beside the others"
    )
    with pytest.raises(PlanError, match=r"30.00 GiB is more than cuda:0 has \(24.00 GiB\)"):
        left_of(30 * GIB, CUDA, GIB)
    card.kept, card.cached = GIB, GIB
    assert activation_budget(CUDA, None, 0.5, overhead(OTHER, 0)) == 5.5 * GIB, "what a recording keeps is for no other"
    assert left_of(8 * GIB, CUDA, GIB) == left - GIB


def test_an_allocator_that_tells_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cudaMallocAsync``: asked for a snapshot, PyTorch raises."""

    def snapshot(_pool: Any = None) -> Any:
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", snapshot)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10 * GIB, 24 * GIB))
    monkeypatch.setattr(budget, "allocator_bytes", lambda _device: AllocatorBytes(5 * GIB, 3 * GIB))
    for backend, told in (("native", True), ("cudaMallocAsync", False), ("pluggable", False)):
        monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda name=backend: name, raising=False)
        assert tells_segments() is told
    assert activation_budget(CUDA, None, 0.5, overhead(OTHER, 0)) == 6 * GIB
    monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "native")
    with pytest.raises(RuntimeError):
        activation_budget(CUDA, None, 0.5, overhead(OTHER, 0))


def test_a_process_with_much_beside_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of many libraries take more than usual; what is far more than that is another process's."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: GIB)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def left(beside: int) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (23 * GIB - beside, 24 * GIB))
        return overhead(CUDA, 0).left(8 * GIB)

    assert left(300 * MIB) == left(500 * MIB)
    assert left(3 * GIB) == left(900 * MIB)
    assert left(950 * MIB) == left(900 * MIB) - 50 * MIB
    assert left(900 * MIB) < left(500 * MIB)
