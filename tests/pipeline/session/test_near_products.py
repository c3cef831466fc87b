"""Products near those of a run: which they are, and that they are computed in the memory that is given."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_vaes import TINY
from torch import Tensor

from tvae.kernels import Kernels
from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.session import near_products as near
from tvae.pipeline.session import prepared
from tvae.pipeline.tiled_vae import TiledVAE

CPU = torch.device("cpu")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The encoder's of 64x48 pixels."""
    found: list[Program] = []
    lower = prepared.lower

    def lowered(*args: Any, **kwargs: Any) -> Program:
        found.append(lower(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(prepared, "lower", lowered)
    vae = TINY["AutoencoderKL"]
    with torch.no_grad():
        TiledVAE(vae.build()).encode(torch.zeros(1, 3, 64, 48))
    return found[0]


def test_the_products_of_a_program(program: Program) -> None:
    ops = program.ops
    linear = [op for op in ops if op.name == "linear"]
    single = [op for op in ops if op.name == "conv2d" and ops[op.inputs[1]].shape[2:] == (1, 1)]
    assert linear
    assert single
    tokens, width = linear[0].shape[-2:]
    expected = {near.Linear(tokens, width, width, True)}
    for op in single:
        outer, inner = ops[op.inputs[1]].shape[:2]
        expected.add(near.Linear(op.shape[2] * op.shape[3], inner, outer, len(op.inputs) > 2))
    found = near.near_products(program)
    assert {product for product in found if isinstance(product, near.Linear)} == expected
    assert {product for product in found if isinstance(product, near.Attention)} <= {near.Attention(tokens, width)}


@pytest.mark.parametrize(("rows", "count"), [(16000, 24), (16000, 12), (64, 24), (5, 4)])
def test_numbers_of_rows_lie_around_the_runs(rows: int, count: int) -> None:
    found = near._near(rows, count)
    assert found == sorted(set(found))
    assert all(n % 64 == 0 and n > 0 for n in found)
    if rows > 1000:
        assert len(found) == count
        assert rows / 1.6 < found[0] < rows * 0.7
        assert rows * 1.4 < found[-1] < rows * 1.6


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of what is multiplied with weights, and of what attends."""
    found: list[tuple[int, ...]] = []
    linear = F.linear

    def noted(x: Tensor, *rest: Any) -> Tensor:
        found.append(tuple(x.shape))
        return linear(x, *rest)

    monkeypatch.setattr(F, "linear", noted)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(Kernels, "wide_attention", lambda _, q, *__: found.append(tuple(q.shape)))
    return found


def test_all_of_them_are_computed(computed: list[tuple[int, ...]]) -> None:
    products = {near.Linear(1000, 8, 16, True), near.Linear(2000, 8, 4, False), near.Attention(1000, 8)}
    near._compute(products, Kernels(), torch.bfloat16, CPU, 10**9)
    linears = [(rows, 8) for base in (1000, 2000) for rows in near._near(base, near._LINEARS)]
    assert sorted(computed) == sorted([*linears, *((1, 1, rows, 8) for rows in near._near(1000, near._ATTENTIONS))])


def test_no_more_memory_is_taken_than_given(computed: list[tuple[int, ...]]) -> None:
    near._compute({near.Linear(1000, 8, 16, True), near.Attention(1000, 8)}, Kernels(), torch.bfloat16, CPU, 24 * 1000)
    assert computed
    assert all(len(shape) == 2 and shape[0] <= 1000 for shape in computed)


@pytest.mark.parametrize(("dtype", "device"), [(torch.bfloat16, "cpu"), (torch.float32, "cuda")])
def test_nothing_is_computed_elsewhere(
    program: Program, computed: list[tuple[int, ...]], dtype: torch.dtype, device: str
) -> None:
    """On a CPU, or in a type of which there is one kernel."""
    given = program if dtype == torch.float32 else in_bfloat16(program)
    near.compute_near(given, Kernels(), torch.device(device), 10**9)
    wait_for_all()
    assert not computed


def in_bfloat16(program: Program) -> Program:
    program.ops[:] = [replace(op, dtype=torch.bfloat16) for op in program.ops]
    return program


def test_a_thread_does_it(program: Program, computed: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, dtype, device: zeros(*shape, dtype=dtype))
    near.compute_near(in_bfloat16(program), Kernels(), torch.device("cuda"), 10**9)
    wait_for_all()
    assert computed


@pytest.mark.parametrize(("vram", "channels", "expected"), [(None, 5, 1), (10**9, 6, 0)])
def test_a_named_budget_is_left_to_the_run(
    vram: int | None, channels: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed beside a run that has to keep within it. Latents of so many channels no other test has."""
    asked: list[Program] = []
    monkeypatch.setattr(prepared, "compute_near", lambda program, *_: asked.append(program))
    tiny = TINY["AutoencoderKL"]
    vae = replace(tiny, config={**tiny.config, "latent_channels": channels}).build()
    with torch.no_grad():
        for size in (64, 48):  # once for a graph
            TiledVAE(vae, vram=vram).encode(torch.zeros(1, 3, size, 40))
    assert len(asked) == expected
