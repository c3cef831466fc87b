"""What ``pipe.vae = TiledVAE(pipe.vae)`` brings in diffusers' video pipelines: their decode, at the public VAE shapes.

``PYTHONPATH=tests/helpers python tests/gpu/pipelines.py wan hunyuan cogvideox ltx --out pipelines.jsonl``

Only the VAE matters here: it has random weights, and is called as the pipelines call it. Each row: the peak beyond
weights, input and output, all that the process held of the device, seconds of the first call, of warm ones and of
diffusers' own (HunyuanVideo's blends pieces of the clip, as its pipeline does), and the first call at a second length,
which captures nothing. Ends with 1 where a row does not meet its goals. The card must be this program's alone.

=========  ==============================================  =====================================================
wan        Wan 2.1, 81 frames 1280x720                     8 GiB beyond input and output, twice diffusers' speed
hunyuan    HunyuanVideo, 129 frames 1280x720, in 24 GiB    the budget
cogvideox  CogVideoX, 49 frames 720x480, in 12 GiB         the budget
ltx        LTX-Video, 121 frames 1280x704                  no capture, and 1.5 times a warm call, as all of them
=========  ==============================================  =====================================================
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sweeping.families import Swept, build, swept
from sweeping.meters import Meter, meter_of
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.timing import is_out_of_memory
from tvae.pipeline.memory.amount import parse_size

GIB = 1 << 30


@dataclass(frozen=True)
class Row:
    """A pipeline's decode. peak: bytes beyond input and output, at most. faster: times diffusers' own speed, at least.
    second: frames of another clip, after the first."""

    family: str
    frames: int
    second: int
    width: int
    height: int
    vram: str | None = None
    peak: int | None = None
    faster: float | None = None


ROWS = {
    "wan": Row("wan21", 81, 49, 1280, 720, peak=8 * GIB, faster=2.0),
    "hunyuan": Row("hunyuan", 129, 61, 1280, 720, "24GiB"),
    "cogvideox": Row("cogvideox", 49, 25, 720, 480, "12GiB"),
    "ltx": Row("ltx", 121, 65, 1280, 704),
}
TINY = {
    "wan": Row("wan21", 9, 5, 64, 32),
    "hunyuan": Row("hunyuan", 9, 5, 64, 32, "4GiB"),
    "cogvideox": Row("cogvideox", 17, 9, 64, 32),
    "ltx": Row("ltx", 17, 9, 64, 64),
}
"""On a CPU, to try the script; budgets there are those of a machine."""
SECOND = 1.5
"""Times a warm call, that the first one of another length may take."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a row does not meet its goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=[*ROWS])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models")
    parser.add_argument("--warm", type=int, default=2, help="calls after the first")
    parser.add_argument("--without", action="store_true", help="leave diffusers' own call out")
    parser.add_argument("--out", type=Path, default=None, help="file that rows are added to, a JSON object a line")
    options = parser.parse_args(arguments)
    tiny, missed = options.device == "cpu", False
    device = torch.device("cpu") if tiny else torch.device("cuda", torch.cuda.current_device())
    for name in options.rows:
        row = (TINY if tiny else ROWS)[name]
        with torch.no_grad():
            facts = measured(row, swept(tiny)[row.family], device, options.warm, own=not options.without)
        facts["missed"] = [*goals(row, facts)]
        print(f"{name}:", "  ".join(f"{key} {_told(value)}" for key, value in facts.items()), flush=True)
        missed = missed or bool(facts["missed"])
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"row": name, **facts}) + "\n")
    return int(missed)


def measured(row: Row, of: Swept, device: torch.device, warm: int, *, own: bool) -> dict[str, Any]:
    """Bytes and seconds of a row."""
    cpu = device.type == "cpu"
    vae = nn.Module.to(build(of, device), torch.float32 if cpu else torch.bfloat16)
    meter = meter_of(device)
    facts: dict[str, Any] = {}
    z = latents(row, of, row.frames, vae)
    if own:
        facts |= _own(vae, z, meter, warm)
    gc.collect()
    tiled: Any = TiledVAE(vae, "cpu" if cpu else "h200", vram=row.vram)
    meter.begin()
    calls = [decoded(meter, tiled, z) for _ in range(1 + warm)]
    kept = meter.kept()
    facts |= {"first": calls[0][0], "warm": min(seconds for seconds, *_ in calls[1:])}
    facts["peak"] = max(peak - output for _, peak, _, output in calls) - max(0, kept)
    facts["held"] = max(held for _, _, held, _ in calls)
    second = latents(row, of, row.second, vae)
    with captures() as found:
        facts["second_first"] = decoded(meter, tiled, second)[0]
    facts["second_warm"] = min(decoded(meter, tiled, second)[0] for _ in range(warm))
    facts["captures"] = len(found)
    return facts


def goals(row: Row, facts: dict[str, Any]) -> Iterator[str]:
    """What a row does not meet, in words."""
    if row.peak is not None and facts["peak"] > row.peak:
        yield f"a peak of {facts['peak'] / GIB:.2f} GiB beyond input and output, {row.peak / GIB:.2f} at most"
    if row.vram is not None and facts["held"] > parse_size(row.vram):
        yield f"held {facts['held'] / GIB:.2f} GiB of {row.vram}"
    if row.faster is not None and facts.get("own", 0.0) and facts["own"] < row.faster * facts["warm"]:
        yield f"{facts['own'] / facts['warm']:.2f} times diffusers' speed, {row.faster} at least"
    if facts["captures"]:
        yield f"{facts['captures']} captures for a second length"
    if facts["second_first"] > SECOND * facts["second_warm"]:
        yield f"the first call of a second length takes {facts['second_first'] / facts['second_warm']:.2f} warm ones"


def latents(row: Row, of: Swept, frames: int, vae: nn.Module) -> Tensor:
    """What a pipeline hands over: random here."""
    geometry, weight = of.geometry, next(vae.parameters())
    time = geometry.lead + (frames - geometry.lead) // (geometry.temporal or 1)
    space = (row.height // geometry.spatial, row.width // geometry.spatial)
    generator = torch.Generator(weight.device).manual_seed(frames)
    shape = (1, geometry.latent_channels, time, *space)
    return torch.randn(shape, generator=generator, device=weight.device).to(weight.dtype)


def decoded(meter: Meter, vae: Any, z: Tensor) -> tuple[float, int, int, int]:
    """Seconds, the most beyond what was there at the beginning, the most held, and the clip's own bytes."""
    call = meter.call(lambda: vae.decode(z, return_dict=False)[0])
    return call.seconds, call.tensors, call.held, call.result.nbytes


@contextmanager
def captures() -> Iterator[list[Any]]:
    """A list that gets an entry for every export."""
    found: list[Any] = []
    export = torch.export.export

    def noted(*args: Any, **options: Any) -> Any:
        found.append(args)
        return export(*args, **options)

    torch.export.export = noted
    try:
        yield found
    finally:
        torch.export.export = export


def _own(vae: nn.Module, z: Tensor, meter: Meter, warm: int) -> dict[str, Any]:
    meter.begin()
    try:
        calls = [decoded(meter, vae, z) for _ in range(1 + warm)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {"own": None}
    seconds = [seconds for seconds, *_ in calls]
    return {
        "own_first": seconds[0],
        "own": min(seconds[1:]),
        "own_peak": max(peak - size for _, peak, _, size in calls),
    }


def _told(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(value) or "nothing"
    if isinstance(value, int) and value >= 1 << 20:
        return f"{value / GIB:.2f} GiB"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
