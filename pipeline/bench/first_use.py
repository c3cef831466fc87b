"""Time to the first result as people meet it: in a process of its own, without anything on disk, and once more with it.

In a process that has measured before, libraries are loaded and kernels built, so that no first call there says what a
first use costs. Here every way to run a VAE gets a new process twice: the first finds its caches empty (captured
graphs, built kernels, compiled code), the second finds what the first left, as every later day does. Loading the
weights is no part of either. Libraries are set as a new process has them: a search of cuDNN's that a preset wants is
ours alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tvae.pipeline.bench.vae import VaeCase

__all__ = ["FirstUse", "FirstUseModel", "caches_in", "first_seconds", "first_use"]

_CACHES = {
    "XDG_CACHE_HOME": "cache",  # ours: graphs, and kernels of the level cuda
    "WIN_PD_OVERRIDE_LOCAL_APPDATA": "cache",  # the same on Windows
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "PYTORCH_KERNEL_CACHE_PATH": "torch",
    "CUDA_CACHE_PATH": "cuda",
}
"""Variable -> folder, for all that is kept from one process to the next."""


@dataclass(frozen=True)
class FirstUseModel:
    """What the other process builds: a VAE by name or in a public shape, and how it runs. preset: a name or a file."""

    vae: str | None
    config: str | None
    preset: str
    device: str
    dtype: str
    strip: int | None = None
    vae_of: str | None = None
    allow_pickle: bool = False


@dataclass(frozen=True)
class FirstUse:
    """Seconds of the first call: with empty caches, and in the next process."""

    empty: float
    again: float


def first_use(rival: str, case: VaeCase, subject: FirstUseModel, *, seconds: float = 900.0) -> FirstUse:
    """Starts two processes, one after the other. RuntimeError for one that fails, or takes longer than this."""
    request = json.dumps({"rival": rival, "case": asdict(case), "subject": asdict(subject)})
    with tempfile.TemporaryDirectory(prefix="tvae-bench-", ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "HF_HOME": _hub_home(), **caches_in(Path(folder))}
        return FirstUse(*(_started(request, env, seconds) for _ in range(2)))


def caches_in(folder: Path) -> dict[str, str]:
    """The variables that send all that is kept from one process to the next into a folder."""
    places = {name: str(folder / place) for name, place in _CACHES.items()}
    for place in places.values():
        Path(place).mkdir(exist_ok=True)
    return places


def _started(request: str, env: dict[str, str], seconds: float) -> float:
    command = [sys.executable, "-m", "tvae.pipeline.bench.first_use"]
    try:
        done = subprocess.run(command, input=request, env=env, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no first result within {seconds:.0f} s") from None
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def _hub_home() -> str:
    """Where downloads are: beside the other caches as a rule, and no part of what is measured."""
    from huggingface_hub.constants import HF_HOME

    return HF_HOME


def first_seconds(rival: str, case: dict[str, Any], subject: dict[str, Any]) -> float:
    """Seconds of the first call, in this process."""
    from tvae.pipeline.bench.rivals import opened
    from tvae.pipeline.bench.shapes import SHAPES, build
    from tvae.pipeline.bench.timing import call_seconds
    from tvae.pipeline.bench.vae import VaeCase, cast, geometry, input_of
    from tvae.pipeline.device import pick_device
    from tvae.pipeline.models.load import load_module, locate_vae

    asked, one = FirstUseModel(**subject), VaeCase(**case)
    device, dtype = pick_device(asked.device), getattr(torch, asked.dtype)
    if asked.config is None:
        found = load_module(locate_vae(asked.vae or "builtin", asked.vae_of, allow_pickle=asked.allow_pickle))
    else:
        found = build(SHAPES[asked.config])
    model = cast(found, device, dtype)
    x = input_of(one, geometry(model)).to(device, dtype)
    way = opened(rival, model, one.side, asked.preset, asked.strip, fresh=False)
    with torch.no_grad(), way as run:
        return call_seconds(lambda: run(x), device)


if __name__ == "__main__":
    print(json.dumps({"seconds": first_seconds(**json.load(sys.stdin))}))
