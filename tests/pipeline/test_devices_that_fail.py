"""``TiledVAE(vae, devices=[...])``: what fails on one device ends the call on all, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from sharing_vae import SharingVAE, Z, agrees, tiled

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.rank_rows import RankRows
from tvae.pipeline.engine.run.thread_exchange import ThreadExchange
from tvae.pipeline.errors import PlanError, RankError, UsageError

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("kind", [RuntimeError, torch.OutOfMemoryError, KeyboardInterrupt])
def test_an_error_in_one_ends_the_call_in_all(rank: int, kind: type[BaseException]) -> None:
    """In the midst of the second call, which raises it; the third call is as the first."""
    model = SharingVAE()
    vae = tiled(model, 3)
    agrees(vae, model, "decode", Z)
    end = RankRows.end_segment

    def failing(self: RankRows, *args: Any) -> Any:
        if self._exchange.rank == rank:
            raise kind("an illegal memory access")
        return end(self, *args)

    with mock.patch.object(RankRows, "end_segment", failing), pytest.raises(kind) as caught:
        vae.decode(Z)
    assert str(caught.value) == "an illegal memory access"
    notes = ["(on cpu, one of the devices that share the call)"] if rank else []
    assert getattr(caught.value, "__notes__", []) == notes
    agrees(vae, model, "decode", Z)


def test_ranks_that_do_not_agree_end() -> None:
    """What is a mistake of ours is an error, not a call that never ends."""
    model = SharingVAE()
    vae = tiled(model)
    gather = ThreadExchange.gather

    def once_more(self: ThreadExchange, part: torch.Tensor) -> Any:
        if self.rank:
            gather(self, part)
        return gather(self, part)

    with mock.patch.object(ThreadExchange, "gather", once_more), pytest.raises((RankError, AssertionError)):
        vae.decode(Z)
    agrees(vae, model, "decode", Z)


def test_what_no_plan_fits() -> None:
    """All find it out, and one says it; then a call that fits."""
    model = SharingVAE()
    vae = tiled(model, vram=1 << 20)
    for _ in range(2):
        with pytest.raises(PlanError):
            vae.decode(Z)
        with pytest.raises(PlanError):
            vae.plan(tuple(Z.shape), "decode")
    agrees(tiled(model), model, "decode", Z)


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ([], r"devices=\[\] leaves nothing to compute on"),
        ("cuda:0", "devices is a list"),
        (2, "devices is a list"),
        (["cpu", "gpu"], "'gpu' is no device"),
        (["cpu", None], "None is no device"),
        (["cuda:0", "cpu"], "of kind cpu, cuda cannot share a call"),
        (["mps", "mps"], "of kind mps cannot share a call"),
        (["cuda:0", "cuda:0"], "devices names cuda:0 twice"),
        (["cuda", "cuda:0"], "devices names cuda:0 twice"),
        ([0, -1], "-1 is no device"),
        ([0, 1, 2], "there is no cuda:2 here, only cuda:0, cuda:1"),
    ],
)
def test_what_is_refused(devices: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(UsageError, match=told) as caught:
        TiledVAE(SharingVAE(), devices=devices)
    assert "\n" not in str(caught.value)


def test_no_gpu_and_other_settings() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="there is no cuda:0 here, no GPU"):
            TiledVAE(SharingVAE(), devices=["cuda:0"])
    with pytest.raises(UsageError, match="gather=False is for the processes of a group"):
        tiled(SharingVAE(), gather=False)
    with pytest.raises(UsageError, match="devices and group cannot be used together"):
        tiled(SharingVAE(), group=object())


def test_a_model_that_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``pipe.to("cpu")``."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    vae = TiledVAE(SharingVAE(), devices=["cuda:0", "cuda:1"])
    for call in (lambda: vae.decode(Z), lambda: vae.plan(tuple(Z.shape), "decode")):
        with pytest.raises(UsageError) as caught:
            call()
        said = "decode() is to run on cuda:0, cuda:1, and the VAE is on cpu: move it to cuda:0 first"
        assert str(caught.value) == said
