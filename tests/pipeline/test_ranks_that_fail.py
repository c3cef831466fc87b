"""``TiledVAE(vae, group=...)``: one process fails in the middle of a call, and its caller goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import SharingVAE, Z, agrees
from tiny_vaes import TINY, waves
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.engine.run.rank_rows import RankRows
from tvae.pipeline.engine.run.run_strip import StripRun
from tvae.pipeline.session import peers, words
from tvae.pipeline.session.captures import Captures
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.session.shared_plans import SharedPlans
from tvae.pipeline.session.weights import PreparedWeights

RANKS, SOON = 3, 20.0
"""Seconds are far fewer than the group's time-out of 60."""
ERRORS: list[BaseException] = [
    torch.OutOfMemoryError("CUDA out of memory\nand more"),
    RuntimeError("an operation"),
    KeyboardInterrupt(),
]
PLACES: dict[str, tuple[Any, str]] = {
    "strip": (StripRun, "run"),
    "before messages": (RankRows, "_complete"),
    "between messages": (RankRows, "_merged"),
    "gather": (GroupExchange, "gather"),
    "swap": (GroupExchange, "swap"),
    "run": (Runner, "run"),
    "result": (peers, "widened"),
    "after": (PreparedWeights, "digest"),
}
"""Of a call with a plan that is known."""
SEVERAL = ("strip", "before messages", "swap")
"""Those that a call comes to several times."""
FIRST: dict[str, tuple[Any, str]] = {
    "capture": (Captures, "of"),
    "runner": (Compiled, "_runner"),
    "plan": (SharedPlans, "of"),
    "check": (SharedPlans, "_check"),
    "weights": (SharedPlans, "_check_weights"),
    "sums": (peers, "SumsLater"),
}
"""Of the first call."""


def failing(place: tuple[Any, str], error: BaseException, times: int) -> AbstractContextManager[Any]:
    """The first ones so many times as they are, then the error once, then as they are. A strip fails ever after: with
    half its rows it may do."""
    do, left = getattr(*place), [times]

    def instead(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == -1 or (left[0] < 0 and place == PLACES["strip"]):
            raise error
        return do(*args, **more)

    return mock.patch.object(*place, instead)


def told(call: Callable[[], Any]) -> str:
    """What it raises, once that is soon."""
    begin = time.monotonic()
    try:
        call()
        said = "nothing"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
    assert time.monotonic() - begin < SOON
    return said


def wanted(rank: int, who: int, error: BaseException) -> str:
    name, said = type(error).__name__, (str(error).splitlines() or [""])[0]
    told_others = f"RankError: rank {who} failed in this call: {name}{': ' if said else ''}{said}"
    return f"{name}: {said}" if rank == who else told_others


def one_failure(
    rank: int, who: int, vae: Any, model: Any, side: str, x: torch.Tensor, place: tuple[Any, str], error: Any, n: int
) -> str:
    """What is wrong, if anything."""
    with failing(place, error, n) if rank == who else nullcontext():
        said = told(lambda: getattr(vae, side)(x))
    want = wanted(rank, who, error)
    if said != want:
        return f"{place} {type(error).__name__} {n} on rank {who}: rank {rank} was told {said!r}, not {want!r}"
    agrees(vae, model, side, x)
    return ""


def pictures(rank: int) -> list[str]:
    found = []
    model = SharingVAE()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    for side in ("decode", "encode"):
        agrees(vae, model, side, Z)
    for name, place in PLACES.items():
        for number, error in enumerate(ERRORS):
            times = number if name in SEVERAL else 0
            found.append(one_failure(rank, number, vae, model, "decode", Z, place, error, times))
    for number, place in enumerate(FIRST.values()):
        who, error = number % RANKS, ERRORS[number % len(ERRORS)]
        vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
        found.append(one_failure(rank, who, vae, model, "decode", Z, place, error, 0))
    return [line for line in found if line]


def clips(rank: int) -> list[str]:
    """In steps: in the first, in a later one, before the result is whole, and where it has no memory."""
    found = []
    model, x = TINY["AutoencoderKLWan"].build(), waves((1, 4, 4, 5, 3))
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    agrees(vae, model, "decode", x)
    for times in (0, 2):
        found.append(one_failure(rank, 1, vae, model, "decode", x, PLACES["run"], RuntimeError("step"), times))
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    found.append(one_failure(rank, 0, vae, model, "decode", x, PLACES["run"], RuntimeError("step"), 0))
    return [line for line in found if line]


def told_and_right(vae: Any, model: Any, who: int, rank: int, place: tuple[Any, str], error: BaseException) -> str:
    return one_failure(rank, who, vae, model, "decode", Z, place, error, 0)


def ways(rank: int) -> list[str]:
    """No memory that ranks share; own rows as the result; the last rank has no rows; a wrong input; a signal."""
    group, error, found = dist.group.WORLD, RuntimeError("an operation"), list[str]()
    model = SharingVAE()
    with mock.patch.object(words, "board_of", return_value=None):
        vae = TiledVAE(model, group=group, strip=2)
        agrees(vae, model, "decode", Z)
        for place in ("run", "between messages", "result", "after"):
            found.append(told_and_right(vae, model, 1, rank, PLACES[place], error))
        for place in FIRST:
            vae = TiledVAE(model, group=group, strip=2)
            found.append(told_and_right(vae, model, 1, rank, FIRST[place], error))
    vae, few = TiledVAE(model, group=group, strip=2), Z[:, :, :2].contiguous()
    for who in (0, RANKS - 1):  # the last one has no rows
        found.append(one_failure(rank, who, vae, model, "decode", few, PLACES["run"], error, 0))
    said = told(lambda: vae.decode(Z.double() if rank == 1 else Z))
    if not said.startswith("UsageError" if rank == 1 else "RankError: rank 1 failed in this call: UsageError: "):
        found.append(said)
    agrees(vae, model, "decode", Z)
    vae = TiledVAE(model, group=group, strip=2, gather=False)
    said = [told(lambda: vae.decode(Z))]
    with failing(PLACES["run"], error, 0) if rank == 2 else nullcontext():
        said.append(told(lambda: vae.decode(Z)))
    said.append(told(lambda: vae.decode(Z)))
    if said != ["nothing", wanted(rank, 2, error), "nothing"]:
        found.append(f"own rows: {said}")
    return [line for line in found if line]


def late(rank: int) -> list[str]:
    """Of a group that has no way between CPUs, as one of NCCL alone: the others have NaN, and are told at the next
    call."""
    model, error, said = SharingVAE(), RuntimeError("an operation"), list[str]()
    before = "failed in the call before this one, which may have given NaN: RuntimeError: an operation"
    who = f"this rank {before}; all ranks raise this now, so that their next calls are the same ones"
    want = []
    backends = mock.patch.object(dist, "get_backend_config", return_value="cuda:gloo")
    with backends, mock.patch.object(torch.Tensor, "cuda", lambda x: x):
        vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
        agrees(vae, model, "decode", Z)
        for place in ("run", "after"):  # whoever fails after its run has sent what the others need
            with failing(PLACES[place], error, 0) if rank == 1 else nullcontext():
                said.append(told(lambda: vae.decode(Z)) if rank == 1 else str(bool(vae.decode(Z).isnan().any())))
            said.append(told(lambda: vae.decode(Z)))
            agrees(vae, model, "decode", Z)
            ours = ["RuntimeError: an operation", f"RankError: {who}"]
            want += ours if rank == 1 else [str(place == "run"), f"RankError: rank 1 {before}"]
    return [] if said == want else said


def interrupted(rank: int) -> list[str]:
    """By Ctrl-C while it waits for a word, and for messages, of a rank that is slow."""
    model, found = SharingVAE(), list[str]()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    agrees(vae, model, "decode", Z)
    for place in ((Peers, "check_call"), (StripRun, "run")):
        do, timer = getattr(*place), threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
        waits = [3.0] if rank == 0 else []  # longer than a signal takes on a busy machine

        def slow(*args: Any, do: Any = do, waits: list[float] = waits, **more: Any) -> Any:
            time.sleep(waits.pop() if waits else 0)
            return do(*args, **more)

        with mock.patch.object(*place, slow):
            if rank == 1:
                timer.start()
            said = told(lambda: vae.decode(Z))
        if said != wanted(rank, 1, KeyboardInterrupt()):
            found.append(f"{place}: {said}")
        agrees(vae, model, "decode", Z)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("do", [clips, ways, late, interrupted])
def test_other_ways_to_fail(do: Callable[[int], list[str]]) -> None:
    for found in in_ranks(RANKS, do):
        assert not found, "\n".join(found)


@pytest.mark.slow
def test_the_others_are_told_and_the_group_goes_on() -> None:
    for found in in_ranks(RANKS, pictures):
        assert not found, "\n".join(found)
