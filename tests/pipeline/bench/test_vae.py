"""Rows of the VAE benchmark: geometry of the cases, errors, and rivals that fail without stopping the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny_vaes import TINY, relative_l2
from torch import nn

from tvae import presets
from tvae.kernels.prebuild import beside, under_way
from tvae.pipeline.bench import rivals, vae
from tvae.pipeline.bench.rivals import RIVALS, channels_last, opened, tensor_of
from tvae.pipeline.bench.vae import VaeCase, VaeRow, bench_vae, geometry, input_of, make_case
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.runner import RECORDED_AT

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def image() -> nn.Module:
    return TINY["AutoencoderKL"].build()


def rows(model: nn.Module, names: list[str], case: VaeCase, dtype: torch.dtype, **options: Any) -> dict[str, VaeRow]:
    found = bench_vae(model, [case], names, presets.load("cpu"), CPU, dtype, repeat=1, **options)
    return {row.rival: row for row in found}


@pytest.mark.long
def test_all_rivals_of_an_image_vae(image: nn.Module) -> None:
    case = make_case(geometry(image), "decode", 32, 48, 2, None)
    names = [name for name in RIVALS if name != "compile"]
    found = rows(image, names, case, torch.float32, reference=torch.float64)
    assert list(found) == names
    for name in ("diffusers", "channels-last", "tvae"):
        row = found[name]
        assert row.status == "ok", row.reason
        assert row.error is not None
        assert 0 < row.error < 1e-5
        assert row.seconds is not None
        assert row.seconds_per_frame == row.seconds / 2
    best = min(found[name].seconds or 0 for name in ("diffusers", "channels-last"))
    assert found["tvae"].speedup == best / (found["tvae"].seconds or 0)
    assert found["tvae"].peak_bytes is None


@pytest.mark.slow
def test_a_video_vae_in_a_lower_type() -> None:
    model = TINY["AutoencoderKLHunyuanVideo"].build()
    case = make_case(geometry(model), "encode", 32, 32, 1, 3)
    assert case.frames == 5  # the next number this VAE can represent
    row = rows(model, ["diffusers", "tvae"], case, torch.bfloat16)["tvae"]
    assert row.status == "ok", row.reason
    assert row.error is not None
    assert 1e-4 < row.error < 0.1
    assert row.seconds_per_frame == (row.seconds or 0) / 5


def test_no_reference_no_error_no_baseline(image: nn.Module) -> None:
    row = rows(image, ["tiled"], VaeCase("decode", 16, 16), torch.float32, reference=None)["tiled"]
    assert (row.status, row.error, row.speedup) == ("ok", None, None)


def test_no_call_counts_while_kernels_are_built(image: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are not recorded before: a small model's calls would all be over, and their time would be another."""
    built: list[bool] = []
    waited, wait = threading.Event(), vae.wait_for_all

    def wait_for_all() -> None:
        waited.set()  # what is built takes until then, on a machine of any speed
        wait()

    @contextmanager
    def slow_to_build(*_args: Any, **_more: Any) -> Iterator[Any]:
        def run(x: torch.Tensor) -> Any:
            if len(built) == 1:
                beside(lambda: waited.wait(60))
            built.append(not under_way())
            return image.decode(x)

        yield run

    monkeypatch.setattr(vae, "opened", slow_to_build)
    monkeypatch.setattr(vae, "wait_for_all", wait_for_all)
    (row,) = bench_vae(
        image, [VaeCase("decode", 64, 64)], ["tvae"], presets.load("cpu"), torch.device("cpu"), torch.float32, repeat=3
    )
    waited.set()
    assert row.status == "ok"
    assert built == [True, False, True, *[True] * (RECORDED_AT - 4), *[True] * 3]


def test_what_fails_is_an_entry(image: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def some(name: str, *arguments: Any) -> Iterator[Any]:
        if name == "tiled":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        if name == "channels-last":
            yield lambda x: 1 / 0
        with opened(name, *arguments) as run:
            yield run

    monkeypatch.setattr(vae, "opened", some)
    found = rows(image, ["channels-last", "tiled", "diffusers"], VaeCase("decode", 16, 16), torch.float32)
    assert [row.status for row in found.values()] == ["failed", "out of memory", "ok"]
    assert found["channels-last"].reason == "ZeroDivisionError: division by zero"


def test_a_reference_that_does_not_fit(image: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(vae, "call_reference", large)
    row = rows(image, ["diffusers"], VaeCase("decode", 16, 16), torch.float32)["diffusers"]
    assert (row.status, row.error) == ("ok", None)


def test_cases_a_vae_cannot_represent(image: nn.Module) -> None:
    of = geometry(image)
    with pytest.raises(UsageError, match="multiples of 4"):
        make_case(of, "decode", 30, 32, 1, None)
    with pytest.raises(UsageError, match="--batch"):
        make_case(of, "decode", 32, 32, 1, 5)
    with pytest.raises(UsageError, match="batch of frames"):
        geometry(TINY["AutoencoderKLTemporalDecoder"].build())


@pytest.mark.parametrize(
    ("name", "frames"), [("AutoencoderKLWan", (1, 5, 5, 9)), ("AutoencoderKLAllegro", (4, 4, 8, 8))]
)
def test_frames_are_rounded_up(name: str, frames: tuple[int, ...]) -> None:
    model = TINY[name].build()
    of = geometry(model)
    for wanted, given in zip((1, 4, 5, 8), frames, strict=True):
        case = make_case(of, "decode", 32, 32, 1, wanted)
        assert case.frames == given
        assert input_of(case, of).shape[2] == of.lead + (given - of.lead) // (of.temporal or 1)


def test_channels_last_is_the_same_model(image: nn.Module) -> None:
    turned = channels_last(image)
    x = input_of(VaeCase("decode", 32, 32), geometry(image))
    with torch.no_grad():
        assert relative_l2(turned.decode(x).sample, image.decode(x).sample) < 1e-5
    assert any(w.ndim == 4 and w.shape[1] > 1 and w.stride(1) == 1 for w in turned.parameters())
    assert all(w.is_contiguous() for w in image.parameters())


def test_tiling_is_on_only_while_it_is_measured(image: nn.Module) -> None:
    with opened("tiled", image, "decode", "cpu", None):
        assert image.use_tiling
    assert not image.use_tiling


@pytest.mark.slow
def test_ours_finds_no_graph_of_an_earlier_run(image: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the time of the first call has the capture in it."""
    import tvae.pipeline.session.new_graph as capturing

    captures = []
    real = capturing.capture
    monkeypatch.setattr(capturing, "capture", lambda *a, **k: captures.append(1) or real(*a, **k))
    x = input_of(VaeCase("decode", 32, 32), geometry(image))
    before = rivals.graph_store._folder
    for count in (1, 2):
        with torch.no_grad(), opened("tvae", image, "decode", "cpu", None) as run:
            tensor_of(run(x))
        assert len(captures) == count
    assert rivals.graph_store._folder is before
