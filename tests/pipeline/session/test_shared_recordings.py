"""Runs that ranks share are recorded, too. The ranks are processes with gloo between them, and a recording is a run on
memory of its own, since a CUDA graph needs GPUs and NCCL (``tests/gpu/test_shared_recordings.py``)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import SharingVAE, Z
from slow_but import slow_but
from stand_in_recordings import Recordings
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import SIDES
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.runner import RECORDED_AT, Runner

CALLS = RECORDED_AT + 3


def in_group(rank: int, refuses: int) -> list[Tensor]:
    """Of calls with inputs of their own, of which the last has other weights; and how many were recorded, replayed."""
    recordings = Recordings(refused=rank == refuses)
    model = SharingVAE()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    with torch.no_grad():
        found = [result(vae.decode(Z * (n + 1))) for n in range(CALLS)]
        model.last.weight.mul_(2.0)
        found.append(result(vae.decode(Z)))
    return [*found, torch.tensor([recordings.made, recordings.replayed, recordings.rows])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "refuses", [pytest.param(-1, marks=pytest.mark.slow, id="all record"), pytest.param(1, id="one does not")]
)
def test_ranks_record_what_they_share(refuses: int) -> None:
    model = SharingVAE().double()
    with torch.no_grad():
        want = [model.decode(Z.double() * (n + 1)) for n in range(CALLS)]
        model.last.weight.mul_(2.0)
        want.append(model.decode(Z.double()))
    for rank, (*found, counted) in enumerate(in_ranks(2, in_group, refuses)):
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, want, strict=True))
        *counts, rows = counted.tolist()
        replays = CALLS + 1 - (RECORDED_AT - 1)
        # where all have recorded, the last one has begun before the weights were looked at
        assert counts == ([0, 0] if rank == refuses else [1, replays if refuses < 0 else replays - 1])
        assert rows < Z.shape[-2], "a recording has no rows that this rank does not read"


def early(rank: int, what: str) -> list[Tensor]:
    """Calls after all ranks have recorded; before the second of them something happens to the second rank."""
    recordings = Recordings()
    model = SharingVAE()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    with torch.no_grad():
        for n in range(RECORDED_AT):
            vae.decode(Z * n)
        (session,) = vae._sessions.values()
        assert len(session._early._recorded_by_all) == 1
        looked, checked = list[str](), Peers._check

        def check(peers: Peers, names: Sequence[str], every: list[list[int]]) -> list[list[int]]:
            looked.append(names[0] if not recordings.at_hand else f"{names[0]}, at hand")
            return checked(peers, names, every)

        still, Peers._check = session._early._still, check  # type: ignore[method-assign]
        session._early._still = lambda: (looked.append("model"), still())[1]
        used = recordings.used
        found = [result(vae.decode(Z))]
        assert recordings.used == used + 1, "or it would be the first to go where others want its memory"
        assert looked == ["VAE, at hand", "model", "input"], "the model is looked at when the device has its work"
        if what == "all change and have no recording":
            model.norm.eps = 0.5
        if (what == "no recording" and rank) or what == "all change and have no recording":
            for ready in session._runs._ready.values():
                ready.runner.drop_recording()
        elif what == "other input" and rank:
            return [*found, *refused(lambda: vae.decode(Z * 2))]
        elif what == "other VAE" and rank:
            model.norm.eps = 0.5
        elif what == "all change":
            model.last.weight.mul_(2.0)
        if what in ("other VAE", "other input"):
            return [*found, *refused(lambda: vae.decode(Z * 3))]
        return [*found, result(vae.decode(Z)), result(vae.decode(Z))]


def refused(call: Callable[[], Any]) -> list[Tensor]:
    with pytest.raises(UsageError, match="rank 1 has another"):
        call()
    return []


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    slow_but(
        ["no recording", "all change", "other VAE"],
        ["no recording", "all change", "all change and have no recording", "other VAE", "other input"],
    ),
)
def test_replays_begin_before_the_model_is_looked_at(what: str) -> None:
    model = SharingVAE().double()
    with torch.no_grad():
        want = [model.decode(Z.double())]
        if what == "all change":
            model.last.weight.mul_(2.0)
        if what == "all change and have no recording":
            model.norm.eps = 0.5
        want += [model.decode(Z.double())] * 2
    for found in in_ranks(2, early, what):
        assert len(found) == (1 if what.startswith("other") else 3)
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, want, strict=False))


class Timed(SharingVAE):
    """With a second input, which has no rows."""

    def decode(self, z: Tensor, temb: Tensor) -> Tensor:  # type: ignore[override]
        return super().decode(z * temb.view(-1, 1, 1, 1))


def timed(_rank: int) -> list[Tensor]:
    recordings = Recordings()
    vae = TiledVAE(Timed(), group=dist.group.WORLD, strip=2)
    with torch.no_grad():
        found = [result(vae.decode(Z, temb=torch.tensor([float(n)]))) for n in (1, 2, 3, 4)]
    return [*found, torch.tensor(recordings.replayed)]


@pytest.mark.long
def test_an_input_without_rows() -> None:
    model = Timed().double()
    with torch.no_grad():
        want = [model.decode(Z.double(), torch.tensor([float(n)]).double()) for n in (1, 2, 3, 4)]
    for *found, replayed in in_ranks(2, timed):
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, want, strict=True))
        assert int(replayed) == 2


def of_family(_rank: int, name: str) -> list[Tensor]:
    """Distances from the model in float64 of four calls of each side, of which the last two may be replays."""
    Recordings()
    tiny = TINY[name]
    model = tiny.build()
    wide, vae = copy.deepcopy(model).double(), TiledVAE(model, group=dist.group.WORLD, strip=2)
    found = []
    for side in SIDES:
        for seed in range(4):
            x, extra = tiny.input(side, 11, 5, seed), tiny.extra(side)
            with torch.no_grad(), reference_mode(wide):
                want = result(call_reference(wide, side, x.double(), **extra))
            found.append(torch.tensor(relative_l2(result(getattr(vae, side)(x, **extra)), want)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_family(name: str) -> None:
    for found in in_ranks(2, of_family, name, seconds=300):
        assert max(found) <= 1e-5


def freed(_rank: int) -> list[Tensor]:
    """Memory that is no longer the weights': a recording would read it in silence."""
    recordings = Recordings()
    model = SharingVAE()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    with torch.no_grad():
        for _ in range(RECORDED_AT):
            vae.decode(Z)
        before = recordings.replayed
        Runner.weights_in_place = lambda _: False  # type: ignore[method-assign]
        return [result(vae.decode(Z)), torch.tensor([before, recordings.replayed])]


@pytest.mark.long
def test_a_recording_goes_with_the_memory_of_the_weights() -> None:
    with torch.no_grad():
        want = SharingVAE().double().decode(Z.double())
    for found, counted in in_ranks(2, freed):
        assert relative_l2(found, want) <= 1e-5
        assert counted.tolist() == [1, 1]
