"""Normalised frames are written behind cached ones, the next cache is cut from both, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, expect, graph_of, live, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.norms import fuse_rms_norm, join_earlier_frames

SHAPE = (2, 4, 5, 6, 5)
"""Two clips of five frames: two of them stand for the cache."""


def join(graph: Graph) -> Graph:
    return join_earlier_frames(fuse_rms_norm(graph))


def cached(x: Tensor) -> Tensor:
    return x[:, :, :2] + 1.0


def normalised(m: Layers, x: Tensor) -> Tensor:
    return F.silu(F.normalize(x[:, :, 2:], dim=1) * 2.0 * m.deep)


def one(m: Layers, x: Tensor) -> Tensor:
    """A single normalised frame."""
    return F.silu(F.normalize(x[:, :, 4:], dim=1) * 2.0 * m.deep)


def convolved(m: Layers, x: Tensor) -> Tensor:
    return F.conv3d(x, m.clip.weight, m.clip.bias, padding=(0, 1, 1))


def alone(m: Layers, x: Tensor) -> Outputs:
    return convolved(m, torch.cat([cached(x), normalised(m, x)], 2))


def with_the_next_cache(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    kept = y[:, :, -2:].clone()
    return convolved(m, torch.cat([before, y], dim=2)), kept


def of_one_frame(m: Layers, x: Tensor) -> Outputs:
    """The next cache is a frame of the old one and the new frame."""
    before, y = cached(x), one(m, x)
    kept = torch.cat([before[:, :, -1].unsqueeze(2), y[:, :, -2:].clone()], dim=2)
    return convolved(m, torch.cat([before, y], dim=2)), kept


def of_frames_in_the_middle(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], -3), y[:, :, 1:2], y[:, :, :-1] * 2


def all_of_it_once_more(m: Layers, x: Tensor) -> Outputs:
    """The pieces of the cache together are the joined clip itself."""
    before, y = cached(x), normalised(m, x)
    parts = [before[:, :, 0].unsqueeze(2), before[:, :, 1:], y[:, :, :2], y[:, :, 2:].contiguous()]
    return convolved(m, torch.cat([before, y], 2)), torch.cat(parts, 2)


def parts_that_do_not_follow(m: Layers, x: Tensor) -> Outputs:
    """The first cached frame and the first new one: another cached one lies between them."""
    before, y = cached(x), normalised(m, x)
    return convolved(m, torch.cat([before, y], 2)), torch.cat([before[:, :, :1], y[:, :, :1]], 2)


JOINED = (alone, with_the_next_cache, of_one_frame, of_frames_in_the_middle, all_of_it_once_more)


@pytest.mark.parametrize("fn", JOINED, ids=name)
def test_normalised_frames_are_written_behind_those_before(fn: Fn) -> None:
    done = all_rewritten(join, *JOINED, shape=SHAPE)[fn]
    node = only(done, "rms_norm_act")
    assert len(node.args) == 8
    assert node.meta.shape[2] == (3 if fn is of_one_frame else 5)
    expect(done, {"cat": 0})


def test_the_next_cache_is_a_copy_of_frames_of_both() -> None:
    done = rewritten(of_one_frame, join, picture(*SHAPE))
    copy = only(done, "clone")
    assert copy.meta.shape[2] == 2
    assert [n.op for n in live(done) if n.op in ("slice", "clone")].count("clone") == 1


def test_frames_that_do_not_follow_each_other_are_joined_as_before() -> None:
    done = rewritten(parts_that_do_not_follow, join, picture(*SHAPE))
    assert len(only(done, "rms_norm_act").args) == 8
    expect(done, {"cat": 1})


def test_a_result_is_no_reader_like_the_last_node() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        before, y = cached(x), normalised(m, x)
        return torch.cat([before, y], 2), y, y[:, :, 1:2]

    assert len(only(rewritten(fn, join, picture(*SHAPE)), "rms_norm_act").args) == 7


def read_whole_by_another(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), y.sum(2, keepdim=True)


def a_result_itself(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), y


def joined_twice(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), torch.cat([before * 2, y], 2)


def in_front(m: Layers, x: Tensor) -> Outputs:
    return torch.cat([normalised(m, x), cached(x)], 2)


def with_a_third(m: Layers, x: Tensor) -> Outputs:
    before = cached(x)
    return torch.cat([before, normalised(m, x), before], 2)


def beside(m: Layers, x: Tensor) -> Outputs:
    return torch.cat([x[:, :, 2:], normalised(m, x)], 1)


def every_second(m: Layers, x: Tensor) -> Outputs:
    before, y = cached(x), normalised(m, x)
    return torch.cat([before, y], 2), y[:, :, ::2]


def behind_something_later(m: Layers, x: Tensor) -> Outputs:
    y = normalised(m, x)
    return torch.cat([y[:, :, :2] * 3, y], 2)


OTHERS = (
    *(read_whole_by_another, a_result_itself, joined_twice, in_front, with_a_third, beside, every_second),
    behind_something_later,
)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_what_looks_alike_stays(fn: Fn) -> None:
    done = all_rewritten(join, *OTHERS, shape=SHAPE)[fn]
    assert all(len(node.args) == 7 for node in live(done) if node.op == "rms_norm_act")
    assert count(done)["cat"] >= 1


def test_a_wider_type_in_front_stays() -> None:
    """The joined clip has that type, and the normalised frames have not."""

    def fn(m: Layers, x: Tensor) -> Outputs:
        before, y = cached(x), F.normalize(x[:, :, 2:].float(), dim=1) * 2.0
        return torch.cat([before, y], 2)

    assert count(join(graph_of(fn, picture(*SHAPE))))["cat"] == 1
