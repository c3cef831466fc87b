"""Writes, numbers and windows that rules do not cover: refused by name, and exact when run whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from one_op import OneOp, clip_tokens, image
from refusals import Build, refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref

REFUSED: dict[str, tuple[str, Build]] = {}


def refused(why: str) -> Callable[[Build], Build]:
    """Register a graph that must be refused, and a word of the reason."""

    def register(build: Build) -> Build:
        REFUSED[build.__name__] = (why, build)
        return build

    return register


@refused("writes into some rows, which are merged")
def one_token_written(g: OneOp) -> Ref:
    return g.call("select_scatter.default", clip_tokens(g), g.param(2, 4), 1, 0, shape=(2, "2*h*w", 4))


@refused("more than one number")
def several_numbers_written(g: OneOp) -> Ref:
    places = g.param(value=torch.tensor([0, 3]))
    return g.call("index_put.default", image(g), [None, places], g.param(2, 1, 1))


@refused("rows by their numbers")
def rows_by_their_numbers(g: OneOp) -> Ref:
    x = image(g)
    return g.call("gather.default", x, 2, g.call("to.dtype", g.call("gt.Scalar", x, 9.0), torch.int64))


@refused("over the rows and other dimensions")
def the_number_of_the_largest_of_all(g: OneOp) -> Ref:
    return g.call("argmax.default", image(g), shape=())


@refused("topk over the rows")
def the_largest_rows(g: OneOp) -> Ref:
    return g.part(g.call("topk.default", image(g), 2, 2, shape=[(2, 4, 2, "w")] * 2), 0)


@refused("rows gate rows")
def rows_that_gate_rows(g: OneOp) -> Ref:
    x = g.input(2, 4, "2*h", "w")
    return g.call("glu.default", x, 2, shape=(2, 4, "h", "w"))


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name_and_exact_when_run_whole(name: str) -> None:
    refused_and_exact(*REFUSED[name])
