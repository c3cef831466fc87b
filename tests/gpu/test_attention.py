"""wide_attention in Triton on a GPU: its error beside PyTorch's own, the guard, frames, CUDA graphs, memory."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels.operations.wide_attention import wide_attention as definition
from tvae.kernels.workspace import attention_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
]

if torch.cuda.is_available() and find_spec("triton"):
    from tvae.kernels.triton.attention import attend_frames, wide_attention
    from tvae.kernels.triton.attention_plan import Plan

BOUND = {torch.bfloat16: 1.02, torch.float16: 1.07}
"""Of PyTorch's own error. In float16 both round the weights to 11 bits; exact is the weight of every key that is the
largest so far in PyTorch's kernel, of the largest of all in this one."""


def _noise(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def _exact(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Of q [M, D], k and v [N, D] in float64, 1024 queries at a time."""
    keys, values = k.double().T.contiguous(), v.double()
    return torch.cat([torch.softmax(part.double() @ keys * scale, 1) @ values for part in q.split(1024)])


def _error(y: Tensor, exact: Tensor) -> float:
    return float((y.reshape(exact.shape).double() - exact).norm() / exact.norm())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", [384, 512, 640, 768, 1024])
@pytest.mark.parametrize(("m", "n"), [(4096, 4096), (1111, 8192), (3000, 2501)])
@pytest.mark.parametrize("spread", [1.0, 2.0, 6.0])
def test_no_further_from_float64_than_pytorch(dtype: torch.dtype, d: int, m: int, n: int, spread: float) -> None:
    """spread: the standard deviation of the scores; at 2 some keys matter, at 6 a few win."""
    q, k, v = _noise(1, 1, m, d, dtype=dtype), _noise(1, 1, n, d, dtype=dtype), _noise(1, 1, n, d, dtype=dtype)
    scale = spread / math.sqrt(d)
    exact = _exact(q[0, 0], k[0, 0], v[0, 0], scale)
    theirs = _error(F.scaled_dot_product_attention(q, k, v, scale=scale), exact)
    assert _error(wide_attention(q, k, v, scale, False), exact) <= BOUND[q.dtype] * theirs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d", [512, 1024])
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_pointers_are_no_worse_than_bulk_copies(dtype: torch.dtype, d: int, spread: float) -> None:
    """What cards before Hopper run, at spread 6 with repairs."""
    q, k, v = (_noise(1, 1, rows, d, dtype=dtype) for rows in (3000, 2501, 2501))
    scale = spread / math.sqrt(d)
    exact = _exact(q[0, 0], k[0, 0], v[0, 0], scale)
    theirs = _error(F.scaled_dot_product_attention(q, k, v, scale=scale), exact)
    plan = Plan(132, 128, 128, 32, 8, 4, 1, False, False)
    assert _error(attend_frames(q, k, v, scale, False, plan), exact) <= BOUND[q.dtype] * theirs


def test_many_tokens() -> None:
    q, k, v = (_noise(1, 1, 65536, 512) for _ in range(3))
    some = torch.randperm(65536, device="cuda")[:256]
    scale = 1 / math.sqrt(512)
    exact = _exact(q[0, 0, some], k[0, 0], v[0, 0], scale)
    theirs = _error(F.scaled_dot_product_attention(q[:, :, some], k, v, scale=scale), exact)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = wide_attention(q, k, v, scale, False)
    peak = torch.cuda.max_memory_allocated() - before - y.nbytes
    print(f"\n65536 tokens: error {_error(y[:, :, some], exact):.3e}, PyTorch's {theirs:.3e}; {peak / 2**20:.0f} MiB")
    assert _error(y[:, :, some], exact) <= BOUND[q.dtype] * theirs
    assert peak < 2**30


@pytest.mark.parametrize("gap", [8.0, 30.0, 2000.0])
def test_a_key_that_the_sample_misses(gap: float) -> None:
    """One key wins by ``gap`` powers of two in some rows: within float16's range, and far beyond it."""
    q, k, v = (_noise(1, 1, 9000, 512) for _ in range(3))
    q[..., 0], k[..., 0] = 0, 0
    q[:, :, 5000:5100, 0] = gap * math.log(2) * math.sqrt(512)
    k[:, :, 7001, 0] = 1  # 7001 is no multiple of the sample's step, 37
    scale = 1 / math.sqrt(512)
    exact = _exact(q[0, 0], k[0, 0], v[0, 0], scale)
    theirs = _error(F.scaled_dot_product_attention(q, k, v, scale=scale), exact)
    y = wide_attention(q, k, v, scale, False)
    assert _error(y, exact) <= BOUND[q.dtype] * theirs
    assert _error(y[0, 0, 5000:5100], exact[5000:5100]) < 4e-3


def test_values_that_are_not_finite_stay_in_their_rows() -> None:
    q, k, v = (_noise(1, 1, 4096, 512) for _ in range(3))
    q[0, 0, 77, 3], q[0, 0, 4000, 5] = math.nan, math.inf
    theirs = F.scaled_dot_product_attention(q, k, v, scale=0.04)
    y = wide_attention(q, k, v, 0.04, False)
    assert torch.equal(y.isnan(), theirs.isnan())
    torch.testing.assert_close(y, theirs, rtol=0.05, atol=0.01, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True])
def test_frames(causal: bool) -> None:
    q, k, v = (_noise(2, 3, 2100, 512) for _ in range(3))
    y, theirs = wide_attention(q, k, v, 0.1, causal), definition(q, k, v, 0.1, causal)
    for i in range(2):
        for frame in range(3):
            seen = frame + 1 if causal else 3
            exact = _exact(q[i, frame], k[i, :seen].reshape(-1, 512), v[i, :seen].reshape(-1, 512), 0.1)
            assert _error(y[i, frame], exact) <= BOUND[q.dtype] * _error(theirs[i, frame], exact)


def test_graph_capture() -> None:
    q, k, v = (_noise(1, 1, 10000, 512) for _ in range(3))
    wide_attention(q, k, v, 0.05, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = wide_attention(q, k, v, 0.05, False)
    for seed in range(2):
        torch.manual_seed(seed)
        for x in (q, k, v):
            x.copy_(_noise(*x.shape))
        if seed:  # and where the guard must act
            q[..., 0], k[..., 0] = 0, 0
            q[:, :, 300, 0], k[:, :, 8000, 0] = 16000, 1
        graph.replay()
        exact = _exact(q[0, 0], k[0, 0], v[0, 0], 0.05)
        assert _error(y, exact) <= BOUND[q.dtype] * _error(F.scaled_dot_product_attention(q, k, v, scale=0.05), exact)


@pytest.mark.parametrize(("queries", "keys"), [(16384, 16384), (16384, 262144), (1024, 65536), (128, 16384)])
def test_memory_is_what_plans_count(queries: int, keys: int) -> None:
    """Beside operands and result, and what the library works in where it divides the sum over keys."""
    q, k, v = _noise(1, 1, queries, 512), _noise(1, 1, keys, 512), _noise(1, 1, keys, 512)
    wide_attention(q, k, v, 0.05, False)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = wide_attention(q, k, v, 0.05, False)
    held = torch.cuda.max_memory_allocated() - before - y.nbytes
    assert held <= 1.02 * attention_bytes(queries, keys, 512) + (32 << 20)
