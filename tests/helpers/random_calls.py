"""Calls of the fused operations on a GPU: random shapes, types, memory layouts and options."""

from __future__ import annotations

import random
from math import prod

import torch
from torch import Tensor

from tvae.kernels.operations import (
    add_stats,
    conv_add,
    conv_from_few,
    conv_to_few,
    down_conv,
    enlarge,
    enlarge_conv,
    finish_stats,
    group_stats,
    linear,
    merge_stats,
    norm_act,
    pad,
    rms_norm_act,
    shuffle_up,
)
from tvae.kernels.oracle import Case, Oracle

__all__ = ["TYPES", "last", "random_case"]

TYPES = (torch.bfloat16, torch.float16, torch.float32)
CHANNELS = (1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 48, 64, 72, 96, 100, 128, 160, 192, 256, 320, 512, 640, 1000, 1024)
LAYOUTS = (*["dense"] * 3, "strip", "columns", "tokens", "clip", "clip strip", "planes", "steps")


def last(x: Tensor) -> Tensor:
    """[N, *spatial, C] with its channels as dimension 1."""
    return x.movedim(-1, 1)


def random_map(oracle: Oracle, pick: random.Random) -> tuple[str, Tensor]:
    """x_nc* of a random shape and a random layout, most of them with channels innermost."""
    n, c = pick.choice((1, 1, 1, 2, 3, 17)), pick.choice(CHANNELS)
    most = max(1, min(200, int((4e6 / (n * c)) ** 0.5)))
    h, w = (pick.choice((1, 2, 3, pick.randint(1, most), pick.randint(1, most), most)) for _ in range(2))
    w += 6 if h * w < 6 else 0  # so few pixels may all be the same: no deviation to measure errors against
    layout = pick.choice(LAYOUTS)
    if layout == "tokens":
        x = last(oracle.picture(n, c, h, w).permute(0, 2, 3, 1).reshape(n, h * w, c))
    elif layout == "clip":
        x = oracle.picture(n, c, 3, h, w)
    elif layout == "clip strip":
        x = oracle.picture(n, c, 3, h + 4, w)[:, :, :, 2 : 2 + h]
    elif layout == "strip":
        x = oracle.picture(n, c, h + 7, w)[:, :, 3 : 3 + h]
    elif layout == "columns":
        x = oracle.picture(n, c, h, w + 5)[..., 2 : 2 + w]
    elif layout == "planes":
        x = oracle.picture(n, c, h, w).contiguous()
    elif layout == "steps":
        x = oracle.picture(n, c, 2 * h, 2 * w)[:, :, ::2, ::2]
    else:
        x = oracle.picture(n, c, h, w)
    return f"{layout} {list(x.shape)} {x.dtype}", x


def random_case(operation: str, pick: random.Random) -> Case:
    oracle = Oracle(pick.choice(TYPES), torch.device("cuda"))
    oracle.random.manual_seed(pick.randrange(2**31))
    yes = {name: pick.random() < 0.5 for name in ("residual", "bias", "stats", "into", "aliased", "weights", "offset")}
    c = pick.choice(CHANNELS)
    if operation == "finish_stats":
        groups = pick.choice([g for g in range(1, c + 1) if c % g == 0])
        n, blocks = pick.randint(1, 4), pick.choice((1, 2, 3, 100, 264, pick.randint(1, 700)))
        label = f"{blocks} blocks, {c} in {groups}"
        return finish_stats.case(
            oracle, label, n, c, blocks, weights=yes["weights"], offset=yes["offset"], groups=groups
        )
    if operation == "merge_stats":
        n, blocks = pick.randint(1, 4), pick.choice((1, 2, 3, 100, 264, pick.randint(1, 700)))
        return merge_stats.case(oracle, f"{blocks} blocks, {c}", n, c, blocks)
    if "conv" in operation:
        n, few, h, w = pick.randint(1, 3), pick.choice((1, 3, 4)), pick.randint(2, 90), pick.randint(2, 90)
        label = f"{[n, few, c, h, w]} {oracle.dtype}"
        if operation == "conv_add":
            pads = 1, 1, pick.randint(0, 1), pick.randint(0, 1)
            more = {name: yes[name] for name in ("residual", "bias", "stats", "into", "aliased")}
            inner = pick.choice([n for n in CHANNELS if n <= 256])
            return conv_add.case(oracle, f"{label} {inner} {pads} {more}", n, inner, c, h + 1, w, pads=pads, **more)
        if operation == "down_conv":
            pads = pick.randint(0, 1), pick.randint(0, 1)
            more = {name: yes[name] for name in ("bias", "stats", "into")}
            inner = pick.choice([n for n in CHANNELS if n <= 256])
            return down_conv.case(
                oracle, f"{label} {inner} {pads} {more}", n, inner, c, h + 2, w + 2, pads=pads, **more
            )
        if operation == "enlarge_conv":
            pads = pick.randint(0, 1), 1, pick.randint(0, 1), 1
            more = {name: yes[name] for name in ("bias", "stats", "into")}
            inner = pick.choice([n for n in CHANNELS if n <= 256])
            return enlarge_conv.case(oracle, f"{label} {inner} {pads} {more}", n, inner, c, h + 1, w, pads=pads, **more)
        if operation == "conv_from_few":
            return conv_from_few.case(oracle, label, n, few, c, h, w, stats=yes["stats"], into=yes["into"])
        return conv_to_few.case(oracle, label, n, c, few, h, w, norm=yes["weights"], act=pick.choice((None, "silu")))
    if operation == "linear":
        rows = pick.choice(((pick.randint(1, 3), pick.randint(60, 700)), (pick.randint(128, 5000),)))
        inner, outer, apart = pick.choice((c, 8, 33)), pick.choice(CHANNELS), pick.choice((0, 0, 8, 3))
        label = f"{[*rows, inner]} to {outer}, {apart} apart, {oracle.dtype}"
        return linear.case(oracle, label, (*rows, inner), outer, bias=yes["bias"], apart=apart)
    label, x = random_map(oracle, pick)
    if operation == "group_stats":
        return group_stats.case(oracle, label, x)
    act = pick.choice((None, "silu"))
    if operation == "norm_act":
        return norm_act.case(oracle, label, x, act)
    if operation == "pad":
        mode = pick.choice(("constant", "replicate"))
        amounts = [pick.randint(0, 2) for _ in range(2 * (x.ndim - 2))]
        return pad.case(oracle, f"{label} {mode} {amounts}", x, amounts, mode, pick.choice(("-", act)))
    if operation == "enlarge":
        factors = [pick.randint(1, 3) for _ in range(x.ndim - 2)]
        return enlarge.case(oracle, f"{label} {factors}", x, factors)
    if operation == "shuffle_up":
        factors = [pick.randint(1, 3) for _ in range(x.ndim - 2)]
        ways = [n for n in range(1, 2 * x.shape[1]) if n * prod(factors) % x.shape[1] == 0]
        channels = pick.choice(ways)
        dim = pick.randrange(x.ndim - 2)
        first, last = sorted(pick.sample(range(x.shape[2 + dim] * factors[dim] + 1), 2))
        part = (dim, first, last) if yes["into"] else None
        label = f"{label} {factors} {channels} {part}"
        return shuffle_up.case(oracle, label, x, factors, channels, summed=yes["residual"], part=part)
    if operation == "rms_norm_act":
        return rms_norm_act.case(
            oracle, label, x, form=pick.choice(("normalize", "rms")), weights=yes["weights"], act=act, into=yes["into"]
        )
    more = {name: yes[name] for name in ("residual", "bias", "stats", "into", "aliased")}
    return add_stats.case(oracle, f"{label} {more}", x, **more)
