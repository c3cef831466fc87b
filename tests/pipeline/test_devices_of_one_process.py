"""``TiledVAE(vae, devices=[...])``: threads that share every call give what the model itself gives, in float64."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from changes import CHANGES
from gloo_ranks import in_ranks
from sharing_vae import HEIGHT, WIDTH, SharingVAE, Z, agrees, sees, tiled
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, waves
from torch import distributed as dist
from torch import nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.rank_threads import RankThreads
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.session.weights import PreparedWeights, _state

SIDES = ("decode", "encode")
pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has weights of its own, as GPUs have."""

    def prepared(self: PreparedWeights, name: str, weight: torch.Tensor) -> torch.Tensor:
        if not self._is_done(name, weight):
            self._done[name] = _state(weight), weight.detach().clone()
        return self._done[name][1]

    monkeypatch.setattr(PreparedWeights, "_prepared", prepared)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("family", TINY)
def test_every_family(family: str, devices: int) -> None:
    """Uneven bands (11 latent rows), strips of two latent rows inside them; both sides, pictures and clips."""
    tiny = TINY[family]
    model = tiny.build()
    vae = tiled(model, devices)
    for side in SIDES:
        agrees(vae, model, side, tiny.input(side, HEIGHT, WIDTH), **tiny.extra(side))


@pytest.mark.long
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("side", SIDES)
def test_sizes(side: str, devices: int) -> None:
    """Also of fewer rows than devices, one after the other; the plan says who has which rows."""
    model = SharingVAE()
    vae = tiled(model, devices)
    for height in (HEIGHT, 2, 1, 12, HEIGHT):
        agrees(vae, model, side, torch.randn(2, 3, height, WIDTH))
    bands = vae.plan((1, 3, 24, WIDTH), "decode").bands
    assert bands == {2: ((0, 12), (12, 24)), 3: ((0, 8), (8, 16), (16, 24))}[devices]


@pytest.mark.slow
def test_bands_of_time() -> None:
    tiny = TINY["AutoencoderKLLTXVideo"]
    model = tiny.build()
    vae, x = tiled(model, strip=1, rows="time"), waves((1, tiny.latent[0], 7, 3, 4))
    agrees(vae, model, "decode", x)
    assert vae.plan(tuple(x.shape), "decode").bands == ((0, 4), (4, 7))


def test_only_shared_work_is_done_twice(caplog: pytest.LogCaptureFixture) -> None:
    """A single row is computed on the first device alone."""
    seen = list[str]()
    vae = tiled(SharingVAE())
    vae.decode(Z)
    started = Runner._executed

    def executed(self: Runner, *args: Any, **kwargs: Any) -> Any:
        seen.append(threading.current_thread().name)
        return started(self, *args, **kwargs)

    with mock.patch.object(Runner, "_executed", executed):
        vae.decode(Z[:, :, :1])
        assert seen == [threading.current_thread().name]
        seen.clear()
        vae.decode(Z)
        assert {*seen} == {threading.current_thread().name, "tvae-device-1_0"}
    assert "only 1 of 2 devices share this: it has too few rows for more" in caplog.text


@pytest.mark.long
@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("change", slow_but(["hook"], ["data_copied", "written", "hook", "layer_exchanged"]))
def test_changes_are_seen(change: str) -> None:
    tiny = TINY["AutoencoderKL"]
    model = tiny.build()
    vae, x = tiled(model), tiny.input("decode", HEIGHT, WIDTH)
    sees(vae, model, "decode", x)
    CHANGES[change](model)
    sees(vae, model, "decode", x)
    sees(vae, model, "decode", x)


@pytest.mark.slow
@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", SIDES)
def test_every_change_is_seen(change: str, side: str) -> None:
    tiny = TINY["AutoencoderKL"]
    model = tiny.build()
    more = {"allow_whole": change in ("circular", "processor")}  # no rules for theirs
    vae, x = tiled(model, 3, **more), tiny.input(side, HEIGHT, WIDTH)
    sees(vae, model, side, x)
    CHANGES[change](model)
    sees(vae, model, side, x)


@pytest.mark.usefixtures("copies")
def test_weights_in_other_places_are_seen() -> None:
    """Other memory, written to behind PyTorch's back afterwards; before the first call, and after a refresh."""
    model = SharingVAE()
    vae = tiled(model)
    model.first.weight.data.mul_(1.5)
    agrees(vae, model, "decode", Z)
    model.first.weight.data = model.first.weight.data.clone()
    agrees(vae, model, "decode", Z)
    for act in (lambda: None, vae.refresh, vae.release):
        model.first.weight.data.mul_(1.1)
        act()
        agrees(vae, model, "decode", Z)


@pytest.mark.slow
@pytest.mark.usefixtures("copies")
def test_a_clip_in_steps_with_changed_weights() -> None:
    tiny = TINY["AutoencoderKLWan"]
    model = tiny.build()
    vae, x = tiled(model), tiny.input("decode", 4, 3)
    agrees(vae, model, "decode", x)
    CHANGES["data_copied"](model)
    agrees(vae, model, "decode", x)


def in_a_group(rank: int) -> torch.Tensor:
    found: torch.Tensor = TiledVAE(SharingVAE(), strip=2, group=dist.group.WORLD).decode(Z)
    return found


@pytest.mark.slow
def test_the_same_bits_as_in_processes() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in those processes
    try:
        mine = tiled(SharingVAE()).decode(Z)
    finally:
        torch.set_num_threads(threads)
    for other in in_ranks(2, in_a_group):
        assert torch.equal(other, mine)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda t: pickle.loads(pickle.dumps(t))])
def test_copies_begin_afresh(copied: Callable[[Any], Any]) -> None:
    vae = tiled(SharingVAE())
    vae.decode(Z)
    other = copied(vae)
    assert other._devices == vae._devices
    assert not other._sessions
    agrees(other, other.vae, "decode", Z)
    assert other.plan(tuple(Z.shape), "decode").bands


def test_another_type() -> None:
    """``to`` moves both, and calls are shared as before."""
    model = SharingVAE()
    vae = tiled(model)
    vae.decode(Z)
    vae.to(torch.float64)
    assert relative_l2(vae.decode(Z.double()), model.decode(Z.double()).detach()) <= 1e-12


@pytest.mark.long
def test_threads_and_objects_at_once() -> None:
    model, other = SharingVAE(), SharingVAE()
    shared = [tiled(model), tiled(model, 3), tiled(other)]
    with ThreadPoolExecutor(6) as threads:
        for future in [threads.submit(agrees, vae, model, side, Z) for vae in shared for side in SIDES]:
            future.result(timeout=120)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu")])
def test_modes_of_the_caller(mode: Callable[[], Any]) -> None:
    """None gets into the other threads, none is needed there: one graph serves all."""
    model = SharingVAE()
    vae = tiled(model)
    with mode():
        found = vae.decode(Z)
    assert relative_l2(found, model.double().decode(Z.double()).detach()) <= 1e-5
    (session,) = vae._sessions.values()
    assert [len(captures._graphs) for captures in session._graphs.values()] == [1]


def test_all_threads_have_the_default_device() -> None:
    """A graph is known by it."""
    seen = dict[int, torch.device]()
    with torch.device("meta"):
        RankThreads([torch.device("cpu")] * 3).run(lambda rank: seen.setdefault(rank, torch.get_default_device()))
    assert seen == dict.fromkeys(range(3), torch.device("meta"))


def test_noise_is_that_of_one_device() -> None:
    """And no other number is drawn from anybody's generator."""

    class Noisy(SharingVAE):
        def decode(self, z: torch.Tensor) -> torch.Tensor:
            h = self.first(z)
            return super().decode(z) + nn.functional.interpolate(self.last(h + torch.randn_like(h)), scale_factor=2.0)

    model, found = Noisy(), []
    for vae in (TiledVAE(model, strip=2), tiled(model, 3)):
        torch.manual_seed(7)
        found.append((vae.decode(Z), torch.rand(1)))
    (alone, after), (shared, then) = found
    assert relative_l2(shared, alone.double()) <= 1e-5
    assert torch.equal(after, then)


def test_a_forked_process_has_threads_of_its_own() -> None:
    model = SharingVAE()
    vae = tiled(model)
    agrees(vae, model, "decode", Z)
    (session,) = vae._sessions.values()
    for pool in session._threads._threads:
        pool.shutdown()
    session._threads._process = 0
    agrees(vae, model, "decode", Z)


def test_one_device_alone() -> None:
    vae = tiled(SharingVAE(), 1)
    assert relative_l2(vae.decode(Z), vae.vae.double().decode(Z.double()).detach()) <= 1e-5
