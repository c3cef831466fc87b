"""The first results of a model whose kernels are not built: before those are there, and as exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SCRIPT = """
import json, os, sys, time
import torch
from tvae.kernels.prebuild import under_way, wait_for_all
from tvae.pipeline.session.model import open_model

waits, dtype = json.loads(sys.argv[1])
from diffusers import AutoencoderKL
from tvae.presets import builtin

def apart(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()

with torch.no_grad():
    own = AutoencoderKL.from_pretrained(os.path.dirname(builtin.__file__)).cuda().eval()
    xs = [torch.randn(1, 3, 512, 384, generator=torch.Generator().manual_seed(n)).clamp(-1, 1).cuda() for n in range(3)]
    wanted = [own.double().encode(x.double()).latent_dist.mean for x in xs]
    own.to(getattr(torch, dtype))
    owns = [apart(own.encode(x.to(own.dtype)).latent_dist.mean, w) for x, w in zip(xs, wanted)]
model = open_model("builtin", dtype=dtype, preset="h200", wait_for_kernels=waits)
begin, found = time.perf_counter(), {"seconds": [], "errors": [], "building": []}
for n in range(15):
    mean = model.encode(xs[n % 3]).mean
    found["errors"].append(apart(mean, wanted[n % 3]) / sum(owns) * 3)
    found["seconds"].append(time.perf_counter() - begin)
    found["building"].append(under_way())
    if n == 2:
        wait_for_all()
print(json.dumps(found))
"""


def run(folder: Path, waits: bool, dtype: str) -> dict[str, Any]:
    """In a process that finds nothing of what others keep."""
    from tvae.pipeline.bench.first_use import caches_in

    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([waits, dtype])],
        env={**os.environ, **caches_in(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_first_results_come_before_the_kernels(dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    early, late = (run(tmp_path / str(waits), waits, dtype) for waits in (False, True))
    assert early["building"][0]
    assert early["seconds"][0] < 0.85 * late["seconds"][0]
    assert not early["building"][-1]
    for found in (early, late):  # of three pictures each
        assert sum(found["errors"][:3]) / 3 <= 1.02
        assert sum(found["errors"][-3:]) / 3 <= 1.02
