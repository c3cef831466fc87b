"""Where the time of a first call goes: seconds within a few functions, and the functions that take most themselves.

What the calling thread does is looked up a hundred times a second. A profiler that counts calls would take the calls of
the threads that build kernels for the caller's, and make Python some three times slower.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from card import card_of

from measuring.models import clip_of, module_of

__all__ = ["profile"]

PARTS = {
    "capture": ("engine/capture.py", "capture"),
    "exporter": ("torch/export/__init__.py", "export"),
    "preparing": ("pipeline/session/warmup.py", "prepared"),
    "passes": ("passes/__init__.py", "optimise"),
    "lowering": ("engine/lower.py", "lower"),
    "planning": ("pipeline/session/choose_plan.py", "planned"),
    "weights": ("pipeline/session/weights.py", "__call__"),
    "rehearsal": ("pipeline/session/warmup.py", "rehearse"),
    "waiting": ("kernels/prebuild.py", "wait_for"),
    "running": ("engine/execute.py", "execute"),
    "Triton builds": ("triton/compiler/compiler.py", "compile"),
    "NVRTC builds": ("cuda/program.py", "compiled"),
}
"""Name -> file and function whose seconds, with all that they call, are told."""
_EVERY = 0.01
"""Seconds."""


class Samples:
    """within: seconds by file and function, callees included; own: without them, by file, function and line. beside:
    when our other threads were first and last seen, in seconds from the beginning, by what they are there for."""

    def __init__(self) -> None:
        self.within: Counter[tuple[str, str]] = Counter()
        self.own: Counter[tuple[str, str, int]] = Counter()
        self.beside: dict[str, tuple[float, float]] = {}

    def look(self, now: float) -> None:
        """Which of our threads there are."""
        for thread in threading.enumerate():
            kind = thread.name.partition("_")[0]
            if kind.startswith("tvae-"):
                self.beside[kind] = self.beside.get(kind, (now, now))[0], now

    def take(self, thread: int, seconds: float) -> None:
        """What this thread is doing now is what it did in the seconds before."""
        frame = sys._current_frames().get(thread)
        if frame is not None:
            self.own[(frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno)] += seconds  # type: ignore[assignment]
        seen: set[CodeType] = set()
        while frame is not None:
            if frame.f_code not in seen:
                seen.add(frame.f_code)
                self.within[(frame.f_code.co_filename, frame.f_code.co_name)] += seconds  # type: ignore[assignment]
            frame = frame.f_back

    def parts(self) -> dict[str, float]:
        """Seconds within the functions of ``PARTS``."""
        found: dict[str, float] = {}
        for (file, name), seconds in self.within.items():
            for part, (where, function) in PARTS.items():
                if name == function and file.replace("\\", "/").endswith(where):
                    found[part] = found.get(part, 0.0) + seconds
        return found


@contextmanager
def sampled() -> Iterator[Samples]:
    """Meanwhile this thread is watched."""
    samples, watched, over = Samples(), threading.get_ident(), threading.Event()

    def watch() -> None:
        before = start = time.perf_counter()
        while not over.wait(_EVERY):
            now = time.perf_counter()
            samples.take(watched, now - before)
            samples.look(now - start)
            before = now

    other = threading.Thread(target=watch, name="samples", daemon=True)
    other.start()
    try:
        yield samples
    finally:
        over.set()
        other.join()


def profile(request: dict[str, Any]) -> dict[str, Any]:
    """config, tiny, side, size, dtype, device, preset: as of ``whole``."""
    import torch

    from tvae.pipeline import TiledVAE

    card = card_of(request["device"])
    model = module_of(request["config"], request["tiny"], request["dtype"], str(card.device))
    x = clip_of(request["config"], request["tiny"], request["side"], tuple(request["size"]))
    x = x.to(card.device, getattr(torch, request["dtype"]))
    run = getattr(TiledVAE(model, request["preset"]), request["side"])
    card.wait()
    start = time.perf_counter()
    with sampled() as samples:
        run(x)
        card.wait()
    seconds = time.perf_counter() - start
    own = [
        f"{seconds:.2f} s {file.rsplit('/', 1)[-1]}:{line} {name}"
        for (file, name, line), seconds in samples.own.most_common(16)
    ]
    own += [f"{first:.2f} to {last:.2f} s {kind}" for kind, (first, last) in samples.beside.items()]
    return {"first": seconds, "parts": samples.parts(), "own": own}
