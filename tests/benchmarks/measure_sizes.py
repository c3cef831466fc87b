"""What new sizes cost: ``PYTHONPATH=tests/helpers python tests/benchmarks/measure_sizes.py``, less than a minute.

``TiledVAE`` with SDXL's shape in bfloat16, after one call at another size has captured the model and built its kernels.
Thirty calls over ten sizes of a trainer's buckets in turn, the device idle after each: their first calls plan; and the
same with ten others, and ten more. ``first`` to ``third`` last until the result is there, ``host`` until the call
returns; ``planning`` is the part of a first call before the device has anything to do. ``warm`` is the median of later
calls, which replay recordings.
``host`` of third calls tells a quick core (5 to 7.5 ms on an H200's machine) from a slow one (8 to 12), on which goals
are missed: a core that another user's work shares is half as fast, which changes several times in a second. So goals
are judged by the medians of three times thirty calls; the first thirty are told apart, too.
``queued`` are thirty calls in a new object, with nobody waiting between them. The card must be this program's alone.
``--profile`` lists where Python spends the first calls. ``--device cpu --tiny`` tries it anywhere.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from card import Card, card_of
from measuring.models import module_of
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.runner import RECORDED_AT

SIZES = (
    (
        *((1024, 1024), (1152, 896), (896, 1152), (1216, 832), (832, 1216)),
        *((1344, 768), (768, 1344), (1536, 640), (640, 1536), (1088, 960)),
    ),
    (
        *((960, 1088), (1344, 704), (704, 1344), (1280, 768), (768, 1280)),
        *((1152, 832), (832, 1152), (1088, 896), (896, 1088), (1408, 704)),
    ),
    (
        *((1024, 960), (960, 1024), (704, 1408), (1472, 704), (704, 1472)),
        *((1600, 640), (640, 1600), (1664, 576), (576, 1664), (960, 960)),
    ),
)
"""Height and width: three times ten."""
MEAN, FIRST, PLANNING = 11.5, 8.0, 3.0
"""Goals on an H200, encode: milliseconds of a call in the mean; of a first call beyond a warm one; of planning."""


GOALS = {"mean": MEAN, "first": FIRST, "planning": PLANNING}
NAMES = {
    "mean": "30 calls, mean",
    "warm": "warm, mean",
    "first": "a first call beyond a warm one, at most",
    "planning": "planning, median",
    "host": "host, third calls, median",
    "queued": "30 calls queued, mean",
}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--side", default="encode", choices=("encode", "decode"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_grad_enabled(False)
    card = card_of(options.device)
    model: Any = module_of("sdxl", options.tiny, "bfloat16", options.device)
    factor = (32 if options.tiny else 1) * (8 if options.side == "decode" else 1)
    channels = 4 if options.side == "decode" else 3
    every = [
        [
            torch.randn(1, channels, height // factor, width // factor, device=card.device).to(torch.bfloat16)
            for height, width in sizes
        ]
        for sizes in SIZES
    ]
    plain = torch.zeros(1, channels, 768 // factor, 768 // factor, dtype=torch.bfloat16, device=card.device)
    made = Planning()

    def begun() -> Callable[[Tensor], object]:
        call: Callable[[Tensor], object] = getattr(TiledVAE(model, "h200"), options.side)
        for _ in range(2):
            call(plain)
        card.wait()
        return call

    call = begun()
    print(f"{card.name}, torch {torch.__version__}, {options.side}; milliseconds")
    print("size        first    host  planning  second   third    host    warm  beyond")
    parts = [thirty(call, sizes, inputs, card, made) for sizes, inputs in zip(SIZES, every, strict=True)]
    parts[0]["queued"] = queued(begun(), every[0], card)
    print(" " * 42 + "    goal  median          first thirty, and the others")
    for name, said in NAMES.items():
        values = [part[name] for part in parts if name in part]
        told = f"{statistics.median(values):8.2f}"
        if name in GOALS:
            told = f"{GOALS[name]:8.1f}{told}  {'met    ' if float(told) <= GOALS[name] else 'not met'}  "
        else:
            told = f"{'':8}{told}{'':11}"
        print(f"{said:42}{told}", *(f"{value:7.2f}" for value in values))
    if options.profile:
        profiled(begun(), every[0])
    return {name: statistics.median([part[name] for part in parts if name in part]) for name in NAMES}


def thirty(
    call: Callable[[Tensor], object],
    sizes: Sequence[tuple[int, int]],
    inputs: Sequence[Tensor],
    card: Card,
    made: Planning,
) -> dict[str, float]:
    """Of calls over ten sizes that are new, three times in turn; a line is printed for each size."""
    rounds = [[one(call, x, card, made) for x in inputs] for _ in range(3)]
    for x in list(inputs) * (RECORDED_AT - 3):
        call(x)
    warm = [statistics.median(one(call, x, card, made)["ms"] for _ in range(6)) for x in inputs]
    for n, (height, width) in enumerate(sizes):
        first, second, third = (found[n] for found in rounds)
        values = (first["ms"], first["host"], first["planning"], second["ms"], third["ms"], third["host"], warm[n])
        print(f"{height}x{width}".ljust(9), *(f"{v:7.2f}" for v in values), f"{first['ms'] - warm[n]:7.2f}")
    return {
        "mean": statistics.mean(row["ms"] for found in rounds for row in found),
        "warm": statistics.mean(warm),
        "first": max(row["ms"] - least for row, least in zip(rounds[0], warm, strict=True)),
        "planning": statistics.median(row["planning"] for row in rounds[0]),
        "host": statistics.median(row["host"] for row in rounds[2]),
    }


class Planning:
    """Seconds of preparing runs, since they were asked for last."""

    def __init__(self) -> None:
        self._seconds, real = 0.0, Compiled.ready

        def timed(*args: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return real(*args, **more)
            finally:
                self._seconds += time.perf_counter() - start

        Compiled.ready = timed  # type: ignore[method-assign]

    def taken(self) -> float:
        """And forgotten."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def one(call: Callable[[Tensor], object], x: Tensor, card: Card, planning: Planning) -> dict[str, float]:
    """Milliseconds of one call from an idle device: until it returned, until the result was there, of planning."""
    planning.taken()
    start = time.perf_counter()
    result = call(x)
    returned = time.perf_counter()
    card.wait()
    done = time.perf_counter()
    del result
    return {"ms": 1e3 * (done - start), "host": 1e3 * (returned - start), "planning": 1e3 * planning.taken()}


def queued(call: Callable[[Tensor], object], inputs: Sequence[Tensor], card: Card) -> float:
    """Milliseconds of a call where nobody waits for results."""
    start = time.perf_counter()
    for _ in range(3):
        for x in inputs:
            call(x)
    card.wait()
    return 1e3 * (time.perf_counter() - start) / (3 * len(inputs))


def profiled(call: Callable[[Tensor], object], inputs: Sequence[Tensor]) -> None:
    """Where Python spends the first calls."""
    profile = cProfile.Profile()
    profile.enable()
    for x in inputs:
        call(x)
    profile.disable()
    pstats.Stats(profile).sort_stats("cumtime").print_stats(70)


if __name__ == "__main__":
    main()
