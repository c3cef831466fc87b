"""``TiledVAE(vae, group=...)``: processes that share every call give what the model itself gives, in float64."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import HEIGHT, WIDTH, SharingVAE
from tiny_vaes import TINY, relative_l2, result
from torch import distributed as dist
from torch import nn
from torch.multiprocessing import ProcessExitedException

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.errors import RankError, UsageError
from tvae.pipeline.models.reference import call_reference, reference_mode

SIDES = ("decode", "encode")


def errors(rank: int, families: tuple[str, ...], sides: tuple[str, ...], strip: int) -> dict[str, float]:
    """By family and side: how far this rank's result is from the model's own, computed whole in float64."""
    found = {}
    for family in families:
        tiny = TINY[family]
        model = tiny.build()
        vae = TiledVAE(model, strip=strip, group=dist.group.WORLD)
        wide = copy.deepcopy(model).double()
        for side in sides:
            x, extra = tiny.input(side, HEIGHT, WIDTH), tiny.extra(side)
            with torch.no_grad(), reference_mode(wide):
                want = result(call_reference(wide, side, x.double(), **extra))
            got = result(getattr(vae, side)(x, **extra))
            assert got.shape == want.shape
            found[f"{family} {side}"] = relative_l2(got, want)
    return found


def check(ranks: int, families: tuple[str, ...], sides: tuple[str, ...] = SIDES, strip: int = 2) -> None:
    for rank, found in enumerate(in_ranks(ranks, errors, families, sides, strip, seconds=600)):
        assert max(found.values()) <= 1e-5, f"rank {rank}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("family", TINY)
def test_every_family_on_several_ranks(family: str, ranks: int) -> None:
    """Uneven bands (11 latent rows), strips of two latent rows inside them."""
    check(ranks, (family,))


def shared_calls(rank: int) -> dict[str, Any]:
    """One pair of processes, many questions: starting them takes longest."""
    group, model = dist.group.WORLD, SharingVAE()
    z = torch.randn(1, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))
    vae, found = TiledVAE(model, strip=2, group=group), dict[str, Any]()
    with torch.no_grad():
        wide = copy.deepcopy(model).double()
        for side in SIDES:
            for x in (z, z[:, :, :1], z):  # of a single row: fewer ranks
                found[f"{side} {x.shape[2]}"] = relative_l2(getattr(vae, side)(x), getattr(wide, side)(x.double()))
        found["part"] = TiledVAE(model, group=group, gather=False).decode(z)
        found["whole"] = model.decode(z)
        said = vae.plan(tuple(z.shape), "decode")
        assert said.rank == rank
        assert said.bands == ((0, 6), (6, 11))
        found["message"] = refusal(model, z[:, :, : 8 + rank])
        found["input"] = refusal(model, z + rank * 1e-6)
        found["turned"] = refusal(model, z.contiguous(memory_format=torch.channels_last) if rank else z)
        model.first.bias += rank
        found["weights"] = refusal(model, z)
        vae = TiledVAE(SharingVAE(), group=group)
        vae.decode(z)
        if rank:
            vae.vae.norm.eps = 0.5
        found["changed"] = refusal_of(vae, z)
    return found


def refusal(model: nn.Module, z: torch.Tensor) -> str:
    return refusal_of(TiledVAE(model, group=dist.group.WORLD), z)


def refusal_of(vae: Any, z: torch.Tensor) -> str:
    try:
        vae.decode(z)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_two_processes_share_a_call() -> None:
    """Both sides, own rows, fewer rows than ranks; what differs between ranks is refused by all."""
    both = in_ranks(2, shared_calls)
    for found in both:
        assert max(value for name, value in found.items() if name.partition(" ")[0] in SIDES) <= 1e-5
        assert found["message"] == "rank 1 has another input size than rank 0: all ranks make the same calls"
        assert found["input"] == "rank 1 has another input than rank 0: all ranks make the same calls"
        assert found["turned"] == ""
        assert found["changed"] == "rank 1 has another VAE than rank 0: all ranks make the same calls"
        assert found["weights"] == "rank 1 has another set of weights than rank 0: all ranks make the same calls"
    parts = [found["part"] for found in both]
    assert [part.shape[2] for part in parts] == [12, 10]
    assert relative_l2(torch.cat(parts, 2), both[0]["whole"]) <= 1e-5


def dying(rank: int, folder: str) -> None:
    """The second process goes in the midst of a run: between two of its segments."""
    z = torch.randn(1, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))
    vae = TiledVAE(SharingVAE(), group=dist.group.WORLD)
    vae.decode(z)
    gather = GroupExchange.gather

    def last(self: GroupExchange, part: torch.Tensor) -> list[torch.Tensor]:
        if rank:
            os._exit(9)
        return gather(self, part)

    with mock.patch.object(GroupExchange, "gather", last):
        try:
            vae.decode(z)
        except RankError as error:
            Path(folder, "said").write_text(str(error), encoding="utf-8")


@pytest.mark.slow
def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException, match="exit code 9"):
        in_ranks(2, dying, str(tmp_path), gone=5)
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert said.startswith("another process of the group died or does not answer")
    assert "\n" not in said


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--one-process"]])
def test_the_table_of_devices_is_printed(more: list[str]) -> None:
    """The script that measures GPUs, between two CPUs."""
    script = Path(__file__).parents[1] / "gpu" / "measure_devices.py"
    command = [sys.executable, str(script), "--cpu", "--tiny", "--times", "1", "--only", "sdxl", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("sdxl")]
    assert [line.split()[1] for line in lines] == ["decode", "encode"]
    assert all(float(line.split()[-1]) <= 1e-5 for line in lines)
