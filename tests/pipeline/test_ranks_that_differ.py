"""``TiledVAE(vae, group=...)``: what differs between processes is refused by all, whenever it comes to differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from changes import CHANGES
from gloo_ranks import in_ranks
from sharing_vae import SharingVAE, Z, agrees
from tiny_vaes import TINY, waves
from torch import distributed as dist

from tvae import presets
from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session import session

ANOTHER = "rank 1 has another {} than rank 0: all ranks make the same calls"
WAYS = ("data_copied", "written", "loaded")


def told(vae: Any, side: str = "decode", x: torch.Tensor = Z) -> str:
    try:
        getattr(vae, side)(x)
    except UsageError as error:
        return str(error)
    return ""


def changed_weights(rank: int) -> dict[str, str]:
    """By the way in which they are changed on the second rank, after calls of both sides. What all ranks change, and
    what one of them lets go of, is no difference."""
    found = {}
    for way in WAYS:
        model = TINY["AutoencoderKL"].build()
        vae, x = TiledVAE(model, group=dist.group.WORLD, strip=2), TINY["AutoencoderKL"].input("decode", 11, 5)
        vae.encode(TINY["AutoencoderKL"].input("encode", 11, 5))
        agrees(vae, model, "decode", x)
        if rank:
            vae.release()
        agrees(vae, model, "decode", x)
        with torch.no_grad():
            model.decoder.conv_out.weight.mul_(1.1)
        agrees(vae, model, "decode", x)
        if rank:
            CHANGES[way](model)
        found[way] = told(vae, "decode", x)
        found[f"{way} again"] = told(vae, "decode", x)
    return found


def a_clip(rank: int) -> str:
    """The same of one in steps."""
    model = TINY["AutoencoderKLWan"].build()
    vae, z = TiledVAE(model, group=dist.group.WORLD), waves((1, 4, 3, 5, 3))
    agrees(vae, model, "decode", z)
    if rank:
        CHANGES["data_copied"](model)
    return told(vae, "decode", z)


def settings(rank: int) -> dict[str, str]:
    """Another wish for results; another preset, with another layout of maps in memory."""
    found = {"gather": told(TiledVAE(SharingVAE(), group=dist.group.WORLD, gather=not rank))}
    for name, value in {"strip": 2 + rank, "vram": (4 + rank) << 30}.items():
        found[name] = told(TiledVAE(SharingVAE(), group=dist.group.WORLD, **{name: value}))  # type: ignore[arg-type]
    if rank:
        session.uses_channels_last = lambda *_: False
    assert presets.load("cpu").memory_layout == "channels_last"
    return {**found, "layout": told(TiledVAE(SharingVAE(), group=dist.group.WORLD))}


def gone(_rank: int) -> str:
    """A group that one rank is no member of, and that the other has destroyed."""
    group: Any = dist.new_group([0])
    try:
        vae = TiledVAE(SharingVAE(), group=group)
    except UsageError as error:
        return str(error)
    agrees(vae, SharingVAE(), "decode", Z)
    dist.destroy_process_group(group)
    return told(vae)


def differences(rank: int) -> dict[str, str]:
    """Of one pair of processes, whose start takes longest."""
    return {**changed_weights(rank), "clip": a_clip(rank), **settings(rank), "gone": gone(rank)}


@pytest.mark.slow
def test_what_differs_is_refused() -> None:
    weights = ANOTHER.format("set of weights")
    want = dict.fromkeys([*WAYS, *(f"{way} again" for way in WAYS), "clip"], weights)
    want["gather"] = ANOTHER.format("wish for results (gather)")
    want["layout"] = ANOTHER.format("layout in memory (preset)")
    want |= dict.fromkeys(["strip", "vram"], ANOTHER.format("setting (strip, vram or rows)"))
    messages = ["the process group is not there any more; pass one that was not destroyed"]
    messages += ["this process is no member of the group; only members make the call"]
    for found, message in zip(in_ranks(2, differences), messages, strict=True):
        want["gone"] = message
        assert found == want
