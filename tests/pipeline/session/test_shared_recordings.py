"""Runs that ranks share are recorded, too. The ranks are processes with gloo between them, and a recording is a run on
memory of its own, since a CUDA graph needs GPUs and NCCL (``tests/gpu/test_shared_recordings.py``)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import SharingVAE, Z
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run import rank_rows
from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import SIDES
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import recorded_first_step, recorded_step
from tvae.pipeline.session.kept_runs import KeptRuns
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.runner import Runner

CALLS = 6


class Recordings:
    """Puts a stand-in in the place of recordings, in this process. refused: none can be made."""

    def __init__(self, *, refused: bool = False) -> None:
        self.made = self.replayed = self.rows = 0
        self.replaying = False
        self._refused, begin = refused, Runner.__init__
        GroupExchange.recordable = property(lambda _: True, lambda *_: None)  # type: ignore[assignment, method-assign]
        KeptRuns.record = self._record  # type: ignore[assignment, method-assign]
        KeptRuns.used = lambda *_: None  # type: ignore[method-assign]

        def recording(runner: Runner, *args: Any, **how: Any) -> None:
            begin(runner, *args, **{**how, "record": True})

        Runner.__init__ = recording  # type: ignore[method-assign]

    def _record(
        self,
        _owner: Any,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        _size: int,
        _carried: int,
        kept: Sequence[Tensor] = (),
    ) -> Any:
        if self._refused:
            raise RuntimeError("no room")
        self.made += 1
        self.rows = inputs[0].shape[-2]
        fixed = [*(torch.empty_like(x) for x in inputs), *kept]

        def replay(given: Sequence[Tensor]) -> list[Tensor]:
            self.replayed += 1
            self.replaying = True
            for ours, theirs in zip(fixed, given, strict=True):
                if theirs.data_ptr() != ours.data_ptr():
                    ours.copy_(theirs)
            found = run(fixed)
            self.replaying = False
            return found

        return SimpleNamespace(replay=replay)


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


@pytest.mark.parametrize("refuses", [-1, 1], ids=["all record", "one does not"])
def test_ranks_record_what_they_share(refuses: int) -> None:
    model = SharingVAE().double()
    with torch.no_grad():
        want = [model.decode(Z.double() * (n + 1)) for n in range(CALLS)]
        model.last.weight.mul_(2.0)
        want.append(model.decode(Z.double()))
    for rank, (*found, counted) in enumerate(in_ranks(2, in_group, refuses)):
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, want, strict=True))
        *counts, rows = counted.tolist()
        # from the third call on; where all have recorded, the last one has begun before the weights were looked at
        assert counts == ([0, 0] if rank == refuses else [1, CALLS - (1 if refuses < 0 else 2)])
        assert rows < Z.shape[-2], "a recording has no rows that this rank does not read"


def early(rank: int, what: str) -> list[Tensor]:
    """Calls after all ranks have recorded; before the second of them something happens to the second rank."""
    Recordings()
    model = SharingVAE()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    with torch.no_grad():
        for n in range(3):
            vae.decode(Z * n)
        (session,) = vae._sessions.values()
        assert len(session._early._recorded_by_all) == 1
        looked, checked = list[str](), Peers._check

        def check(peers: Peers, names: Sequence[str], every: list[list[int]]) -> list[list[int]]:
            looked.append(names[0])
            return checked(peers, names, every)

        still, Peers._check = session._early._still, check  # type: ignore[method-assign]
        session._early._still = lambda: (looked.append("model"), still())[1]
        found = [result(vae.decode(Z))]
        assert looked == ["VAE", "model", "input"], "the model is looked at when the device has its work"
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


@pytest.mark.parametrize(
    "what", ["no recording", "all change", "all change and have no recording", "other VAE", "other input"]
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


FRAMES = {"decode": 9, "encode": 29}


def clips(side: str) -> list[Tensor]:
    wan = TINY["AutoencoderKLWan"]
    like = wan.input(side, 8, 4)
    return [waves((*like.shape[:2], FRAMES[side], *like.shape[3:]), seed) for seed in (1, 2)]


def steps_in_group(_rank: int, side: str) -> list[Tensor]:
    """Two clips; runs that were recorded, replays, and caches that replays copied to and from their places."""
    recordings = Recordings()
    to, widen, widened = mock.Mock(wraps=recorded_step.copied), rank_rows.widened, list[bool]()

    def watched(value: Tensor, *where: Any, **how: Any) -> Tensor:
        found = widen(value, *where, **how)
        widened.append(recordings.replaying and found is not value)
        return found

    recorded_step.copied = to  # type: ignore[attr-defined]
    rank_rows.widened = watched  # type: ignore[assignment, attr-defined]
    vae = TiledVAE(TINY["AutoencoderKLWan"].build(), group=dist.group.WORLD)
    with torch.no_grad():
        found = [result(getattr(vae, side)(x)) for x in clips(side)]
    return [*found, torch.tensor([recordings.made, recordings.replayed, to.call_count, sum(widened)])]


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_steps_keep_their_caches_in_the_recording(side: str) -> None:
    model = TINY["AutoencoderKLWan"].build().double()
    with torch.no_grad():
        want = [result(getattr(model, side)(x.double())) for x in clips(side)]
    for *found, counted in in_ranks(2, steps_in_group, side):
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, want, strict=True))
        made, replayed, *copied = counted.tolist()
        assert made == 2, "one that reads the first places of caches, one that reads the others"
        assert replayed >= 8, "most of the steps"
        assert copied == [0, 0]


def begun_in_group(_rank: int, side: str) -> list[Tensor]:
    """Five clips, of which the fourth comes while the caches of one that was stopped are held; runs that were recorded
    when the second, the third and the last were over, replays of the last, and copies into places of caches."""
    recordings = Recordings()
    to = recorded_step.copied = recorded_first_step.copied = mock.Mock(wraps=recorded_step.copied)  # type: ignore[attr-defined]
    vae = TiledVAE(TINY["AutoencoderKLWan"].build(), group=dist.group.WORLD)
    one, other = clips(side)
    found, made = [], []
    with torch.no_grad():
        for n, x in enumerate((one, other, one, other, one)):
            (session,) = vae._sessions.values() or [None]
            if n == 3:
                (later,) = (r.runner.step for r in session._runs._ready.values() if r.runner.step is not None)
                held = later.begun()
            before = recordings.replayed
            found.append(result(getattr(vae, side)(x)))
            made.append(recordings.made)
            if n == 3:
                del held
    return [*found, torch.tensor([made[1], made[2], made[4], recordings.replayed - before, to.call_count])]


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_first_steps_leave_their_caches_in_the_recording(side: str) -> None:
    model = TINY["AutoencoderKLWan"].build().double()
    with torch.no_grad():
        one, other = (result(getattr(model, side)(x.double())) for x in clips(side))
    steps = 1 + (FRAMES[side] - 1) // (1 if side == "decode" else 4)
    for *found, counted in in_ranks(2, begun_in_group, side):
        wanted = (one, other, one, other, one)
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, wanted, strict=True))
        assert counted.tolist() == [2, 3, 3, steps, 0]


def freed(_rank: int) -> list[Tensor]:
    """Memory that is no longer the weights': a recording would read it in silence."""
    recordings = Recordings()
    model = SharingVAE()
    vae = TiledVAE(model, group=dist.group.WORLD, strip=2)
    with torch.no_grad():
        for _ in range(3):
            vae.decode(Z)
        before = recordings.replayed
        Runner.weights_in_place = lambda _: False  # type: ignore[method-assign]
        return [result(vae.decode(Z)), torch.tensor([before, recordings.replayed])]


def test_a_recording_goes_with_the_memory_of_the_weights() -> None:
    with torch.no_grad():
        want = SharingVAE().double().decode(Z.double())
    for found, counted in in_ranks(2, freed):
        assert relative_l2(found, want) <= 1e-5
        assert counted.tolist() == [1, 1]
