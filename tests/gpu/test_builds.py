"""What a build of Triton's kernels does not do."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.version.cuda is None, reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
]


def test_no_kernel_has_a_library_linked_into_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It takes 50 ms a kernel, in which Triton keeps Python's lock: see ``kernels/triton/device.py``."""
    from triton.backends.nvidia import compiler
    from triton.runtime.jit import JITFunction

    from tvae.kernels.triton import IMPLEMENTATIONS as run
    from tvae.kernels.triton import launch

    modules = [m for name, m in sys.modules.items() if name.startswith("tvae.kernels.triton")]
    for value in (value for module in modules for value in vars(module).values()):  # what other tests left
        if isinstance(value, JITFunction):
            value.device_caches.clear()
        elif hasattr(value, "cache_clear"):
            value.cache_clear()
    for left in (launch._MADE, launch._READY):
        left.clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    own, wanted = compiler.nvidia.has_extern_deps, []
    monkeypatch.setattr(compiler.nvidia, "has_extern_deps", lambda built: wanted.append(own(built)) or wanted[-1])

    last = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn((1, 64, 32, 32), **last).contiguous(memory_format=torch.channels_last)
    few = torch.randn((1, 4, 32, 32), **last).contiguous(memory_format=torch.channels_last)
    affine, weight = torch.randn((2, 1, 64), device="cuda"), torch.randn(64, **last)
    parts = run["group_stats"](x)
    run["finish_stats"](parts, 32, 1e-6, weight, weight, weight)
    run["norm_act"](x, affine, "silu")
    run["add_stats"](x, x, weight, None, True)
    for form in ("normalize", "rms"):
        run["rms_norm_act"](x, weight, weight, 1e-6, form, "silu", weight)
    run["pad"](x, (1, 1, 1, 1), "replicate", affine, "silu")
    run["enlarge"](x, (2, 2))
    run["shuffle_up"](x, (2, 2), 32, None)
    run["conv_from_few"](few, torch.randn((64, 4, 3, 3), **last), weight, (1, 1, 1, 1), None, True)
    run["conv_to_few"](x, torch.randn((4, 64, 3, 3), **last), None, (1, 1, 1, 1), affine, "silu")
    tokens = torch.randn((1, 1, 2100, 384), **last)
    run["wide_attention"](tokens, tokens, tokens, 384**-0.5, False)
    torch.cuda.synchronize()
    assert len(wanted) > 15
    assert not any(wanted)
