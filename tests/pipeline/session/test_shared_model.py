"""VAEs as jobs compute with them, shared by ranks: the first has the inputs, the others follow, results are one's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import in_ranks
from tiny_vaes import TINY, relative_l2
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline.errors import RankError
from tvae.pipeline.session.broken_group import BrokenGroup
from tvae.pipeline.session.model import Model, open_model
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.session import Session
from tvae.pipeline.session.shared_model import SharedModel

FAMILIES = sorted(TINY.keys() - {"SeedVR2VAE", "TAEHV", "TAECVX", "TAESD"})
"""Those of diffusers, which can be opened by name."""
SIDES: tuple[Any, ...] = ("decode", "encode")
pytestmark = pytest.mark.slow


def opened(vae: str) -> SharedModel:
    assert dist.group.WORLD is not None
    kind = partial(SharedModel, peers=Peers(dist.group.WORLD, first_only=True), tell=tell)
    model = open_model(vae, device="cpu", strip=2, kind=kind)
    assert isinstance(model, SharedModel)
    return model


def tell(order: Any) -> None:
    dist.broadcast_object_list([order], 0)


def follow(model: SharedModel) -> None:
    """Until there are no more orders."""
    while True:
        order: list[Any] = [None]
        dist.broadcast_object_list(order, 0)
        if order[0] is None:
            return
        model.follow(order[0])


def computed(model: Model, side: Any, x: Tensor, *, again: bool = False) -> Tensor:
    """again: another stream goes on in the midst of a clip, with what the first one saved."""
    stream = model.stream(side) if x.ndim == 5 else None
    if stream is None:
        return model.encode(x).mean if side == "encode" else model.decode(x)
    parts, at = list[Tensor](), 0
    for n, size in enumerate(stream.cuts.sizes(x.shape[2])):
        if again and n == 1:
            told, saved, stream = stream.nbytes, stream.saved(), model.stream(side)
            assert told == sum(cache.nbytes for cache in saved)
            assert stream is not None
            assert all(type(cache) is Tensor for cache in saved)
            stream.restore(saved)
        parts.append(stream.step(x[:, :, at : at + size]))
        at += size
    return torch.cat(parts, 2)


def errors(rank: int, family: str, vae: str) -> dict[str, float]:
    """By side: how far the first rank's result is from that of one rank alone."""
    model = opened(vae)
    if rank:
        follow(model)
        return {}
    alone, found = open_model(vae, device="cpu"), dict[str, float]()
    for side in SIDES:
        x = TINY[family].input(side, 11, 5)
        if family == "AutoencoderKLTemporalDecoder":  # whose frames are a batch
            x = x.transpose(0, 1).unsqueeze(0)
        for again in (False, True):
            got = computed(model, side, x, again=again)
            found[f"{side} {again}"] = relative_l2(got, computed(alone, side, x).double())
    tell(None)
    return found


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, ranks: int, tmp_path: Path) -> None:
    TINY[family].build().save_pretrained(tmp_path)
    first, *others = in_ranks(ranks, errors, family, str(tmp_path))
    assert len(first) == 4
    assert max(first.values()) <= 1e-5, first
    assert not any(others)


def several_streams(rank: int, vae: str) -> float:
    """Two clips at a time, one of them let go of in the midst."""
    model = opened(vae)
    if rank:
        follow(model)
        return len(model._followed)
    x = TINY["AutoencoderKLWan"].input("decode", 11, 5)
    wanted = computed(open_model(vae, device="cpu"), "decode", x)
    one, other = model.stream("decode"), model.stream("decode")
    assert one is not None
    assert other is not None
    parts, at = list[Tensor](), 0
    for size in one.cuts.sizes(x.shape[2]):
        chunk = x[:, :, at : at + size]
        if other is not None:
            other.step(chunk.flip(-1))
        other = None
        parts.append(one.step(chunk))
        at += size
    assert computed(model, "decode", x).shape == wanted.shape
    tell(None)
    return relative_l2(torch.cat(parts, 2), wanted.double())


def test_several_streams(tmp_path: Path) -> None:
    TINY["AutoencoderKLWan"].build().save_pretrained(tmp_path)
    error, kept = in_ranks(2, several_streams, str(tmp_path))
    assert error <= 1e-5
    assert kept == 2, "what the first rank has let go of, the others have too, when the next begins"


def failing(rank: int) -> str:
    """The first rank fails in the midst of a call: the group is of no more use, whatever asks."""
    model, compute = opened("builtin"), Session.compute

    def fails(self: Session, *args: Any, **more: Any) -> Any:
        compute(self, *args, **more)
        raise ValueError("in the midst")

    if rank:
        try:
            follow(model)
        except RankError as error:
            return str(error)
        return ""
    Session.compute = fails  # type: ignore[method-assign]
    try:
        model.decode(torch.zeros(1, 16, 8, 8))
    except BrokenGroup as broken:
        found = str(broken.__cause__)
        tell(None)
        return found
    return ""


def test_a_failure_in_the_midst_is_no_item_s() -> None:
    assert in_ranks(2, failing)[0] == "in the midst"
