"""wide_attention in Triton, by its interpreter where there is no GPU: tiles, repairs and the loops around."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import attention
from tvae.kernels.triton.attention import attend_frames, wide_attention
from tvae.kernels.triton.attention_launches import launch_weights
from tvae.kernels.triton.attention_plan import Plan, Scratch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of overflows that a GPU is silent about
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POINTERS = Plan(2, 32, 32, 32, 4, 2, 1, False, False, group=2, block=64, chunk=96)
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
ROUNDING = {torch.bfloat16: 2.5e-3, torch.float16: 5e-4}
"""The output's rounding, relative L2, and for float16 as much again for the weights."""
needs_bulk_copies = pytest.mark.skipif(torch.cuda.is_available() and not HOPPER, reason="needs Hopper or newer")
PLANS = [
    pytest.param(POINTERS, id="pointers"),
    pytest.param(replace(POINTERS, tma=True, slices=2, flat=True), id="descriptors", marks=needs_bulk_copies),
    pytest.param(replace(POINTERS, columns=64, tma=True, slices=4, chunk=128), id="slices", marks=needs_bulk_copies),
]


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: bfloat16 as the hardware has it (the interpreter truncates, and multiplies its bits)."""
    if DEVICE == "cuda":
        return
    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, *(cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)), *rest)

    def cast_impl(self: Any, source: Any, kind: Any) -> Any:
        if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, source, kind)
        return TensorHandle(torch.tensor(source.data).bfloat16().view(torch.uint16).numpy(), tl.bfloat16)

    def add_product(wide: Tensor, p: Tensor, v: Tensor, first: bool) -> None:
        wide.copy_((0 if first else wide) + p.float() @ v.float())

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
    monkeypatch.setattr(attention, "add_product", add_product)


def _noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def _exact(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    q, k, v = (x.double() for x in (q, k, v))
    return torch.softmax(q @ k.T * scale, 1) @ v


def _error(y: Tensor, exact: Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, plan: Plan) -> Tensor:
    return attend_frames(q[None, None], k[None, None], v[None, None], scale, False, plan)[0, 0]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "n"), [(96, 96), (70, 211)])
def test_is_the_attention_of_float64(plan: Plan, dtype: torch.dtype, m: int, n: int) -> None:
    q, k, v = (_noise(rows, 64, seed=i, dtype=dtype) for i, rows in enumerate((m, n, n)))
    assert _error(_attend(q, k, v, 0.3, plan), _exact(q, k, v, 0.3)) < ROUNDING[dtype]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("n", [97, 101, 200, 203])
def test_products_are_of_few_kinds(plan: Plan, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library has slow kernels for an odd number of keys, and another kernel for each number of queries."""
    seen, add = [], attention.add_product
    v = _noise(n, 64, seed=2)

    def spied(wide: Tensor, p: Tensor, values: Tensor, first: bool) -> None:
        seen.append((len(wide), p.shape, values.shape))
        add(wide, p, values, first)

    class Unwritten(Scratch):
        """Memory as somebody else may have left it."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.weights.fill_(torch.nan)
            self.wide.fill_(torch.nan)

    monkeypatch.setattr(attention, "add_product", spied)
    monkeypatch.setattr(attention, "Scratch", Unwritten)
    for m in (33, 40, 65, 70, 90, 128, 200):  # blocks of 64 queries and fewer
        q, k = _noise(m, 64), _noise(n, 64, seed=1)
        assert _error(_attend(q, k, v, 0.3, plan), _exact(q, k, v, 0.3)) < ROUNDING[torch.bfloat16]
    assert {rows for rows, *_ in seen} == {40, 64}
    assert all(p[1] == values[0] and p[1] % 8 == 0 for _, p, values in seen)


@pytest.mark.parametrize("plan", PLANS)
def test_weights_their_sums_and_tops(plan: Plan) -> None:
    q, k = _noise(50, 64), _noise(75, 64, seed=1)
    scratch = Scratch(50, 75, 64, q.device, plan)
    scratch.peaks[0, :50] = torch.linspace(-3, 10, 50)
    for x in (scratch.weights, scratch.sums, scratch.tops):
        x.zero_()
    launch_weights(q, k, scratch, 0, 0.25, plan)
    above = q.double() @ k.double().T * 0.25 - scratch.peaks[0, :50, None].double()
    torch.testing.assert_close(scratch.weights[:50, :75].double(), torch.exp2(above), rtol=2**-10, atol=2**-24)
    torch.testing.assert_close(scratch.sums[:, :50].sum(0).double(), torch.exp2(above).sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(scratch.tops[:, :50].amax(0).double(), above.amax(1), rtol=1e-5, atol=1e-5)
    for beyond in (scratch.weights[:, 75:], scratch.sums[:, 50:], scratch.tops[:, 50:]):
        assert not beyond.any()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("gap", [5.0, 20.0, 200.0, 3000.0])
@pytest.mark.parametrize("places", [(101,), (4, 41, 101), (101, 103)])
def test_keys_that_the_sample_misses(plan: Plan, gap: float, places: tuple[int, ...]) -> None:
    """In some rows keys win by ``gap`` powers of two and more, later ones by more: within float16, and far beyond."""
    q, k, v = _noise(96, 64), _noise(130, 64, seed=1) * 0.1, _noise(130, 64, seed=2)
    q[:, 0], k[:, 0] = 0, 0
    q[20:40, 0] = gap * math.log(2)
    for i, place in enumerate(places):
        assert place % (-(-130 // plan.columns) | 1) != 0, "the sample must miss the key"
        k[place, 0] = 1 + 0.5 * i
    y, exact = _attend(q, k, v, 1.0, plan), _exact(q, k, v, 1.0)
    assert _error(y, exact) < ROUNDING[torch.bfloat16]
    assert _error(y[20:40], exact[20:40]) < ROUNDING[torch.bfloat16]


def test_every_peak_raised_in_every_chunk() -> None:
    """Each chunk's keys win over all before them: the repair works all the time, and the sums follow."""
    q, k, v = torch.zeros(70, 64), torch.zeros(288, 64), _noise(288, 64, seed=2)
    q[:, 0] = 1
    k[1::4, 0] = torch.arange(72) * 0.4
    k[1::96, 0] += 20
    q, k = q.to(DEVICE, torch.bfloat16), k.to(DEVICE, torch.bfloat16)
    assert _error(_attend(q, k, v, 1.0, POINTERS), _exact(q, k, v, 1.0)) < ROUNDING[torch.bfloat16]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("spread", [2.0, 6.0])
def test_the_largest_weight_of_few_is_exact(plan: Plan, spread: float) -> None:
    """In float16 no further from float64 than weights of which the largest is 1, rounded to that type."""
    q, k, v = (_noise(rows, 64, seed=i, dtype=torch.float16) for i, rows in enumerate((96, 160, 160)))
    scale = spread / 8
    exact = _exact(q, k, v, scale)
    scores = q.double() @ k.double().T * scale
    weights = torch.exp(scores - scores.amax(1, keepdim=True))
    rounded = (weights.half().double() @ v.double() / weights.sum(1, keepdim=True)).half()
    assert _error(_attend(q, k, v, scale, plan), exact) < 1.05 * _error(rounded, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_that_are_not_finite_stay_in_their_rows(dtype: torch.dtype) -> None:
    q, k, v = (_noise(rows, 64, seed=i, dtype=dtype) for i, rows in enumerate((80, 60, 60)))
    exact = _exact(q, k, v, 0.2)
    q[3, 5], q[70, 1] = math.nan, math.inf
    y = _attend(q, k, v, 0.2, POINTERS)
    lost = torch.zeros(80, dtype=torch.bool, device=DEVICE)
    lost[[3, 70]] = True
    assert y[lost].isnan().all()
    assert _error(y[~lost], exact[~lost]) < ROUNDING[dtype]


def test_a_value_that_is_infinite() -> None:
    q, k, v = (_noise(40, 64, seed=i) for i in range(3))
    v[7, 9] = math.inf
    y, exact = _attend(q, k, v, 0.05, POINTERS), _exact(q, k, v, 0.05)
    assert (y[:, 9] == math.inf).all()
    rest = [c for c in range(64) if c != 9]
    assert _error(y[:, rest], exact[:, rest]) < ROUNDING[torch.bfloat16]


def test_channels_of_any_size() -> None:
    """Values over nearly all of bfloat16's range, and a channel of zeros: float16 holds each channel."""
    q, k, v = (_noise(40, 64, seed=i) for i in range(3))
    sizes = torch.logspace(-100 / math.log2(10), 125 / math.log2(10), 64)
    v = (v.float() * sizes.to(DEVICE)).bfloat16()
    v[:, 30] = 0
    y, exact = _attend(q, k, v, 0.1, POINTERS), _exact(q, k, v, 0.1)
    assert not y[:, 30].any()
    for c in (c for c in range(64) if c != 30):
        assert _error(y[:, c], exact[:, c]) < 2 * ROUNDING[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_weights_count(dtype: torch.dtype) -> None:
    """Many keys 18 powers of two below one that has no value: all of the output is theirs."""
    q, k, v = torch.zeros(32, 64), torch.zeros(512, 64), _noise(512, 64, seed=2, dtype=dtype)
    q[:, 0], k[0, 0] = 1, 18 * math.log(2)
    q, k = q.to(DEVICE, dtype), k.to(DEVICE, dtype)
    v[0] = 0
    assert _error(_attend(q, k, v, 1.0, replace(POINTERS, chunk=512)), _exact(q, k, v, 1.0)) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize("causal", [False, True])
def test_frames_and_batches(causal: bool) -> None:
    q, k, v = _noise(2, 3, 33, 64), _noise(2, 3, 40, 64, seed=1), _noise(2, 3, 40, 64, seed=2)
    out = attend_frames(q, k, v, 0.2, causal, POINTERS)
    for i in range(2):
        for frame in range(3):
            seen = frame + 1 if causal else 3
            keys, values = k[i, :seen].reshape(-1, 64), v[i, :seen].reshape(-1, 64)
            assert _error(out[i, frame], _exact(q[i, frame], keys, values, 0.2)) < ROUNDING[torch.bfloat16]


@pytest.mark.parametrize("plan", PLANS[:2])
def test_strided_inputs(plan: Plan) -> None:
    """A projection's thirds (rows further apart), channels that are not dense, and rows at odd addresses."""
    thirds = _noise(1, 2, 40, 3 * 64)
    q, k, v = thirds.split(64, 3)
    odd = _noise(2 * 40 * 65 + 1, seed=5)[1:].view(1, 2, 40, 65)[..., :64]
    turned = _noise(1, 2, 64, 40, seed=6).transpose(2, 3)
    for keys, values in ((k, v), (odd, turned)):
        out = attend_frames(q, keys, values, 0.2, False, plan)
        exact = _exact(*(x.reshape(-1, 64) for x in (q, keys, values)), 0.2)
        assert _error(out.view(-1, 64), exact) < ROUNDING[torch.bfloat16]


def test_refuses_what_it_does_not_take() -> None:
    def call(d: int, dtype: torch.dtype, tokens: int = 4096, device: str = DEVICE) -> None:
        x = torch.empty((1, 1, 1, 1), dtype=dtype, device=device).expand(1, 1, tokens, d)
        wide_attention(x, x, x, 1.0, False)

    for d, dtype in ((512, torch.float32), (256, torch.bfloat16), (500, torch.bfloat16), (1088, torch.bfloat16)):
        with pytest.raises(Unsupported):
            call(d, dtype)
    with pytest.raises(Unsupported):
        call(512, torch.bfloat16, device="cpu")
    with pytest.raises(Unsupported):
        call(512, torch.bfloat16, tokens=100)


@pytest.mark.parametrize("queries", [1, 31, 64, 65, 96, 129, 200, 16384, 15808])
def test_blocks_of_queries_are_as_good_as_equal(queries: int) -> None:
    """No more than with the largest ones, and of few sizes: a matrix product chooses its kernel for each."""
    rows = Scratch(queries, 64, 32, torch.device("cpu"), POINTERS).rows
    blocks = [len(part) for part in torch.empty(queries).split(rows)]
    assert len(blocks) == -(-queries // POINTERS.block)
    assert max(blocks) <= POINTERS.block
    assert max(blocks) - min(blocks) < 32 * len(blocks)
    if queries % (32 * len(blocks)) == 0:
        assert len({*blocks}) == 1
