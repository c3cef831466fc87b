"""Who had the memory at a peak, out of a trace of the allocator."""

from __future__ import annotations

from typing import Any

from sweeping.traces import told

MIB = 1 << 20


def event(action: str, address: int, size: int, line: int = 1) -> dict[str, Any]:
    frames = [
        {"filename": "/usr/lib/site-packages/torch/kernels/x.py", "line": 9},
        {"filename": "/src/tvae/pipeline/engine/run/execute.py", "line": line},
        {"filename": r"C:\src\tests\gpu\sweep.py", "line": 3},
    ]
    return {"action": action, "addr": address, "size": size * MIB, "frames": frames if action == "alloc" else []}


def test_what_is_alive_at_the_peak() -> None:
    events = [
        event("free_completed", 99, 50),  # was there before
        event("alloc", 1, 30, line=7),
        event("alloc", 2, 40, line=8),
        event("free_requested", 1, 30),
        event("free_completed", 1, 30),
        event("alloc", 1, 25, line=8),
        event("alloc", 3, 35, line=7),
        event("free_completed", 2, 40),
        event("alloc", 4, 10, line=7),
    ]
    peak, *parts = told(events)
    assert peak == "  peak +50 MiB, at event 7 of 9"
    assert [part.split() for part in parts] == [
        ["65.0", "MiB", "x2", "pipeline/engine/run/execute.py:8", "<", "tests/gpu/sweep.py:3"],
        ["35.0", "MiB", "x1", "pipeline/engine/run/execute.py:7", "<", "tests/gpu/sweep.py:3"],
    ]


def test_nothing_was_taken() -> None:
    assert told([]) == ["  peak +0 MiB, at event 0 of 0"]
