"""What recorded runs keep of a card's memory, and that all of it comes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from sweeping.families import build, swept
from torch import Tensor, nn

from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.limits import recorded_segments
from tvae.pipeline.session.kept_runs import RECORDED_MOST, RECORDED_ROOM, drop_recordings
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CARD = torch.device("cuda", 0)
NAMES = ("taesd", "sdxl", "flux2", "dc")


@pytest.fixture
def nothing_recorded() -> Iterator[None]:
    drop_recordings(CARD)
    yield
    drop_recordings(CARD)


def model_of(name: str, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    return nn.Module.to(build(swept(False)[name], CARD, seed=1), dtype)


def latents(name: str, height: int, width: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    geometry = swept(False)[name].geometry
    return torch.randn(1, geometry.latent_channels, height, width, device=CARD).to(dtype)


def kept() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return sum(s["total_size"] for s in recorded_segments(CARD))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_recording_keeps_what_was_planned_or_is_not_made(name: str, nothing_recorded: None) -> None:
    tiled, before = TiledVAE(model_of(name), "h200"), kept()
    for height, width in ((24, 40), (100, 60), (63, 65)):
        z, there = latents(name, height, width), kept()
        first = tiled.decode(z).sample
        for _ in range(RECORDED_AT):
            assert torch.equal(tiled.decode(z).sample, first)
        said = tiled.plan(tuple(z.shape), "decode").peak_bytes
        assert kept() - there <= RECORDED_MOST * said + RECORDED_ROOM
    drop_recordings(CARD)
    assert kept() == before  # no library keeps a workspace there


@pytest.mark.parametrize("side", ["decode", "encode"])
@torch.no_grad()
def test_pictures_that_take_the_host_longer_are_recorded(side: str, nothing_recorded: None) -> None:
    """Each in a session of its own, whose memory holds nothing else yet."""
    model = model_of("sdxl")
    for height, width in ((128, 128), (64, 64), (125, 125), (88, 184), (61, 143), (192, 128)):
        tiled, z = TiledVAE(model, "h200"), latents("sdxl", height, width)
        x = z if side == "decode" else z.new_zeros(1, 3, 8 * height, 8 * width)
        for _ in range(3):
            getattr(tiled, side)(x)
            wait_for_all()
        for _ in range(RECORDED_AT):
            getattr(tiled, side)(x)
        (session,) = tiled._sessions.values()
        assert [ready.runner.recorded for ready in session._runs._ready.values()] == [True], (height, width)
        del session
        drop_recordings(CARD)


@torch.no_grad()
def test_a_large_picture_is_not_recorded(nothing_recorded: None) -> None:
    """It would save next to nothing, and keep gigabytes from the other models of a pipeline."""
    tiled, z, before = TiledVAE(model_of("sdxl"), "h200"), latents("sdxl", 320, 320), kept()
    for _ in range(3):
        tiled.decode(z)
        wait_for_all()
    for _ in range(RECORDED_AT):
        tiled.decode(z)
        torch.cuda.synchronize()
    assert kept() == before


@pytest.mark.parametrize("name", ["sdxl", "wan21"])
@torch.no_grad()
def test_recordings_go_with_their_vae(name: str, nothing_recorded: None) -> None:
    """At once, and not when Python looks for cycles: whoever drops a pipeline wants its memory for the next."""
    model, before = model_of(name), kept()
    z = latents(name, 32, 32)
    z = z if name == "sdxl" else z[:, :, None].expand(-1, -1, 3, -1, -1)
    tiled = TiledVAE(model, "h200")
    for _ in range(3):
        tiled.decode(z)
        wait_for_all()
    for _ in range(RECORDED_AT):
        tiled.decode(z)
    assert kept() > before
    gc.disable()
    try:
        del tiled
        torch.cuda.empty_cache()
        assert sum(s["total_size"] for s in recorded_segments(CARD)) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@torch.no_grad()
def test_a_short_clip_is_recorded_whole(dtype: torch.dtype, nothing_recorded: None) -> None:
    """The same bits as step by step, in what was planned; other clips in between, and weights written to. In float32
    so small a clip is at the edge of what a recording may take, and may go on step by step."""
    model, before = model_of("wan21", dtype), kept()
    tiled = TiledVAE(model, "h200")
    z = [latents("wan21", 30, 52, dtype)[:, :, None].expand(-1, -1, n, -1, -1) + n for n in (5, 3)]
    with torch.no_grad():
        first = [tiled.decode(x).sample for x in z]
        for n in range(4):
            there, said = kept(), max(tiled.plan(tuple(x.shape), "decode").peak_bytes for x in z)
            for x, y in zip(z, first, strict=True):
                assert torch.equal(tiled.decode(x).sample, y), n
            assert kept() - there <= RECORDED_MOST * said + RECORDED_ROOM
        session = next(iter(tiled._sessions.values()))
        assert dtype == torch.float32 or all(clip.recorded for clip in session._runs._clips.values())
        assert len(session._runs._clips) == 2
        next(model.decoder.parameters()).data.mul_(1.25)
        changed = tiled.decode(z[0]).sample
        assert not torch.equal(changed, first[0])
        assert torch.equal(TiledVAE(model, "h200").decode(z[0]).sample, changed)
    drop_recordings(CARD)
    del session
    assert kept() == before


@torch.no_grad()
def test_while_a_clip_is_recorded_half_of_the_card_stays_free(nothing_recorded: None) -> None:
    """Whether it is recorded or not. Without a limit this one asked for all of a card."""
    tiled = TiledVAE(model_of("wan22", torch.float32), "h200")
    z = latents("wan22", 30, 40, torch.float32)[:, :, None].expand(-1, -1, 3, -1, -1).contiguous()
    first = tiled.decode(z).sample
    said = tiled.plan(tuple(z.shape), "decode").peak_bytes
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats(CARD)
        there, free = torch.cuda.memory_reserved(CARD), torch.cuda.mem_get_info(CARD)[0]
        assert torch.equal(tiled.decode(z).sample, first)
        most = RECORDED_MOST * said + 2 * RECORDED_ROOM
        assert torch.cuda.max_memory_reserved(CARD) - there <= most + (free - most) / 2


@torch.no_grad()
def test_a_plan_in_a_budget_that_holds_nothing_is_refused_whatever_has_to_be_captured(nothing_recorded: None) -> None:
    tiled = TiledVAE(model_of("sdxl", torch.float32), "h200", vram="1MiB")
    with pytest.raises(PlanError) as caught:
        tiled.plan((3, 3, 2048, 2048), "encode")
    enough = caught.value.enough
    assert enough is not None
    del tiled, caught  # whose frames hold the model, too
    gc.collect()
    x = torch.zeros(3, 3, 2048, 2048, device=CARD)
    assert TiledVAE(model_of("sdxl", torch.float32), "h200", vram=enough + x.nbytes).encode(x) is not None
