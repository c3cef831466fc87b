"""How much bfloat16 and float16 err in strips, beside the untiled model: every family, both sides, mean over seeds.

``PYTHONPATH=tests/helpers python tests/gpu/low_precision.py --seeds 4`` prints a line for each family, side and type:
the untiled model's own error (relative L2 from the same weights in float32), and ours in whole and in strips as parts
of it: mean and standard error over seeds of weights and input. Law 1 allows 1.02. Ends with 1 where a mean lies more
than two standard errors above that. ``--part 0/4`` takes every fourth family, so that four commands share a card.
``--device cpu`` takes tiny models.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence

import torch
from sweeping.cells import Cell
from sweeping.families import Swept, build, swept
from sweeping.inputs import input_of, options_of
from sweeping.meters import meter_of
from sweeping.numbers import LAW
from sweeping.untiled import Untiled
from tiny_vaes import relative_l2
from torch import nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.rivals import tensor_of
from tvae.pipeline.models.calls import SIDES, Side

TYPES = ("bfloat16", "float16")
HIGH, WIDE = 11, 6
"""Latents of a picture."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a mean lies above the law."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models")
    parser.add_argument("--families", default=None, help="names, separated by commas; all by default")
    parser.add_argument("--part", default="0/1", help="i/n: families i, i + n, ...")
    options = parser.parse_args(arguments)
    of_all = swept(options.device == "cpu")
    names = options.families.split(",") if options.families else [*of_all]
    first, step = map(int, options.part.split("/"))
    above = False
    for name in names[first::step]:
        for side in SIDES:
            for dtype in (t for t in TYPES if t in of_all[name].types):
                found = [*_errors(of_all[name], side, dtype, options.seeds, torch.device(options.device))]
                above |= _told(name, side, dtype, found)
    return int(above)


def _errors(of: Swept, side: Side, dtype: str, seeds: int, device: torch.device) -> Iterator[tuple[float, ...]]:
    """Of each seed: the untiled model's own error, ours in whole, and ours in strips."""
    geometry = of.geometry
    frames = of.lengths[min(1, len(of.lengths) - 1)]
    for seed in range(seeds):
        cell = Cell(
            *(seed, 0, 0, "seeds", of.name, side, HIGH * geometry.spatial, WIDE * geometry.spatial, frames, 1),
            *(dtype, None, True, False, 1),
        )
        model = nn.Module.to(build(of, device, seed), getattr(torch, dtype))
        x = input_of(cell, of, model, device)
        untiled = Untiled(of, model, meter_of(device))
        exact, why = untiled.run(cell, x, torch.float32)
        own, also = untiled.run(cell, x, x.dtype)
        if exact is None or own is None:
            raise RuntimeError(f"{cell}: {why}; {also}")
        ours = [
            tensor_of(getattr(TiledVAE(model, strip=strip), side)(x, **options_of(cell, of))).cpu()
            for strip in (None, 4)
        ]
        yield tuple(relative_l2(y, exact) for y in (own, *ours))


def _told(name: str, side: str, dtype: str, found: Sequence[tuple[float, ...]]) -> bool:
    """Print a line. Does a mean lie above the law, beyond what chance explains?"""
    line, above = f"{name:10} {side:6} {dtype:8}  own {statistics.mean(each[0] for each in found):.2e}", False
    for n, how in ((1, "whole"), (2, "strips")):
        ratios = [each[n] / each[0] for each in found]
        mean = statistics.mean(ratios)
        error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
        fell = not mean <= LAW + 2 * error
        line += f"  {how} {mean:.3f} ± {error:.3f}{' ABOVE' if fell else ''}"
        above |= fell
    print(line, flush=True)
    return above


if __name__ == "__main__":
    sys.exit(main())
