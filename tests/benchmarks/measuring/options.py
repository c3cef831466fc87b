"""Options that all measuring scripts have."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from typing import Any

import torch
from card import GIB, Card, host_memory

__all__ = ["common", "fill_host", "machine"]


def common(parser: argparse.ArgumentParser) -> None:
    """Where to measure, how long, and where rows go."""
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--preset", default=None, help="h200; on a CPU cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--here", action="store_true", help="no processes apart, to try the script")
    parser.add_argument("--out", default=None, help="file that rows are added to, a JSON object a line")
    parser.add_argument("--until", type=float, default=500.0, help="seconds after which no row is begun")
    parser.add_argument("--longest", type=float, default=480.0, help="seconds that one process may take")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for results that are compared")
    parser.add_argument(
        "--fill-host",
        type=int,
        default=0,
        metavar="GIB",
        help="write to so much host memory first: virtual machines may grow only as it is used, and plans go by it",
    )


def fill_host(options: argparse.Namespace) -> None:
    """Settles the preset, too. The time it takes is no longer there for rows."""
    begin = time.perf_counter()
    options.preset = options.preset or ("h200" if options.device == "cuda" else "cpu")
    if options.fill_host:
        before = host_memory()
        filler = multiprocessing.get_context("spawn").Process(target=_fill, args=(options.fill_host,))
        filler.start()
        filler.join()
        after = host_memory()
        told = [f"{total / GIB:.0f} GiB, {used / GIB:.0f} in use" for total, used in (before, after)]
        print(f"host memory: {told[0]}; after {options.fill_host} GiB were written: {told[1]}", flush=True)
        options.until -= time.perf_counter() - begin


def machine(card: Card) -> dict[str, Any]:
    """What rows were measured on."""
    import diffusers

    facts: dict[str, Any] = {"device": card.name, "torch": torch.__version__, "diffusers": diffusers.__version__}
    if card.device.type == "cuda":
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        try:
            import triton

            facts["triton"] = triton.__version__
        except ImportError:
            facts["triton"] = "none"
    return facts


def _fill(size: int) -> None:
    """In blocks of 4 GiB, which are held until the last is written."""
    held = [torch.ones(min(4, size - at) * GIB, dtype=torch.uint8) for at in range(0, size, 4)]
    print(f"wrote {sum(len(block) for block in held) / GIB:.0f} GiB", flush=True)
