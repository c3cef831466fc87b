"""Budgets in processes of their own, which load their libraries while they keep to them: as the program is started.

What others hold of the card meanwhile, this one among them, is not theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MIB = 1 << 20

CALLS = """
import json, sys
import torch
sys.path[:0] = {paths!r}
from test_vram import SDXL, input_of, taken
from tvae.pipeline import TiledVAE
torch.set_grad_enabled(False)
tiled = TiledVAE(SDXL.build().cuda().bfloat16(), preset="h200", vram={named})
x, over = input_of({side!r}, {size}), []
for _ in range(3):
    torch.cuda.reset_peak_memory_stats()
    getattr(tiled, {side!r})(x)
    torch.cuda.synchronize()
    over.append(taken() - torch.cuda.memory_reserved() + torch.cuda.max_memory_reserved() - {others} - {named})
print(json.dumps(over))
"""


@pytest.mark.parametrize(
    ("side", "size", "named"),
    [("encode", 2048, 2048), ("encode", 2048, 1640), ("decode", 2048, 3072), ("decode", 1024, 1640)],
)
@pytest.mark.parametrize("beside", [0, 3072])
def test_every_call_keeps_to_it(side: str, size: int, named: int, beside: int, tmp_path: Path) -> None:
    """beside: MiB that another process holds, at least."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "helpers")]
    held = torch.empty(beside * MIB, dtype=torch.uint8, device="cuda") if beside else None
    others = 0
    if torch.cuda.is_initialized():  # or asking would make this process hold something
        free, total = torch.cuda.mem_get_info()
        others = total - free
    script = CALLS.format(paths=paths, side=side, size=size, named=named * MIB, others=others)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    del held
    assert done.returncode == 0, done.stderr
    over = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{side} {size} in {named} MiB: {', '.join(f'{n / MIB:+.0f}' for n in over)} MiB")
    assert max(over) <= 0
