"""What a rehearsal builds, against what the run asks for."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TinyVAE

from tvae.pipeline.session.runner import RECORDED_AT
from tvae.pipeline.tiled_vae import TiledVAE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
]

SMALL = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (64, 128, 384),
        "layers_per_block": 1,
        "norm_num_groups": 32,
    },
    (4, None),
    4,
)


@pytest.mark.parametrize("side", ["decode", "encode"])
@pytest.mark.parametrize(("latent", "strip"), [((64, 96), None), ((75, 67), None), ((80, 96), 16)])
def test_the_run_builds_nothing_more(
    side: str, latent: tuple[int, int], strip: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With caches empty, at this size and at others; and nothing is built twice."""
    from triton.runtime.jit import JITFunction

    from tvae.kernels.triton.checksum import _sums

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    modules = [m for name, m in sys.modules.items() if name.startswith("tvae.kernels.triton")]
    for kernel in (value for module in modules for value in vars(module).values() if isinstance(value, JITFunction)):
        kernel.device_caches.clear()
    built: list[tuple[str, str, str]] = []
    compile_ = JITFunction._do_compile

    def spied(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        built.append((self.__name__, key, threading.current_thread().name))
        return compile_(self, key, *args, **kwargs)

    monkeypatch.setattr(JITFunction, "_do_compile", spied)
    vae = TiledVAE(SMALL.build().cuda().bfloat16(), "h200", strip=strip)
    with torch.no_grad():
        for _ in range(RECORDED_AT + 1):  # the last but one is recorded, the last a replay
            getattr(vae, side)(SMALL.input(side, *latent).cuda().bfloat16())
    assert len(built) > 10
    late = [kernel for kernel, _, thread in built if not thread.startswith("tvae-build")]
    late = [kernel for kernel in late if kernel != _sums.__name__]  # checksums of the weights are no part of the run
    assert not late
    assert len({(kernel, key) for kernel, key, _ in built}) == len(built)
    built.clear()
    random = torch.Generator().manual_seed(latent[1])
    with (
        torch.no_grad()
    ):  # so many tokens that tiles lack some, or lack none; rows of few values that 16 divides, or not
        for height, width in torch.randint(40, 100, (12, 2), generator=random).tolist():
            getattr(vae, side)(SMALL.input(side, height, width).cuda().bfloat16())
        pair = torch.cat([SMALL.input(side, 61, 59)] * 2)
        getattr(vae, side)(pair.cuda().bfloat16())
    assert not built
