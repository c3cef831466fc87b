"""What cannot be joined from several ranks is not shared, and is named."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.shared_run import SharedRun, shared_plan


def program_of(fn: Any) -> Program:
    x = torch.zeros(1, 4, 24, 10, dtype=torch.double)
    graph = simplify(capture(nn.Identity(), lambda t: [fn(t)], [x]))
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    return lower(graph, sizes, x.device)


def spread(x: Tensor) -> Tensor:
    return x / x.std((2, 3), keepdim=True)


def product(x: Tensor) -> Tensor:
    return x * x.amax((2, 3), keepdim=True)


PEERS: Any = SimpleNamespace(count=3, rank=0, must_share=False)


def test_a_statistic_that_cannot_be_joined_is_computed_by_each_rank_for_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program, seen = program_of(spread), list[Program]()

    def choose(given: Program) -> Any:
        seen.append(given)
        return "plan"

    assert shared_plan(program, PEERS, choose, unit=1) == "plan"
    assert seen == [program]
    assert program.ranks is None
    assert "only 1 of 3 devices share this: operation 'std'" in caplog.text
    with pytest.raises(UsageError, match=r"operation 'std' .* cannot be shared by several devices"):
        shared_plan(program, PEERS, choose, unit=1, steps=True)
    with pytest.raises(UsageError, match=r"operation 'std' .* cannot be shared by several devices"):
        shared_plan(program, SimpleNamespace(count=2, rank=1, must_share=True), choose, unit=1)  # type: ignore[arg-type]


def test_what_has_no_rows_is_refused_where_ranks_must_share(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise each rank computes it."""
    program = program_of(torch.neg)
    first = program.inputs[0]
    ops = tuple(replace(op, axis=None) if op.id == first else op for op in program.ops)
    peers: Any = SimpleNamespace(count=2, rank=1, must_share=True)
    with pytest.raises(UsageError, match="neither rows nor frames that several devices could share"):
        shared_plan(replace(program, ops=ops), peers, lambda _: None, unit=1)  # type: ignore[arg-type,return-value]
    assert shared_plan(replace(program, ops=ops), PEERS, lambda _: "plan", unit=1) == "plan"  # type: ignore[arg-type,return-value]
    assert "only 1 of 3 devices share this: it has neither rows nor frames" in caplog.text


def test_one_that_can_be_is_shared() -> None:
    seen: list[Program] = []

    def choose(given: Program) -> Any:
        seen.append(given)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        shared_plan(program_of(product), PEERS, choose, unit=1)
    assert seen[0].ranks is not None
    assert len(seen[0].ranks.bands) == 3


@pytest.mark.parametrize("shape", [(2, 3, 2, 5), (1, 3, 4, 2, 5)])
def test_the_first_rank_has_what_cannot_be_divided(shape: tuple[int, ...]) -> None:
    """As of a single row. Each other one has its rows, none, unless all want the whole result; what has no rows, such
    as a loss, all have."""
    program, found = program_of(torch.neg), [torch.randn(shape), torch.tensor(0.5)]
    ops = tuple(replace(op, axis=None) for op in program.ops)
    whole = replace(program, ops=ops, outputs=program.outputs * 2)

    def of(rank: int, *, gather: bool) -> list[Any]:
        peers: Any = SimpleNamespace(count=2, rank=rank, gather=gather)
        return SharedRun(whole, peers, steps=False, channels_last=False).results(found, torch.device("cpu"))

    assert torch.equal(torch.cat([of(rank, gather=False)[0] for rank in range(2)], -2), found[0])
    assert [of(rank, gather=False)[1] for rank in range(2)] == [0.5, 0.5]
    assert all(torch.equal(of(rank, gather=True)[0], found[0]) for rank in range(2))
