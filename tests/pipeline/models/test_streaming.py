"""Clips in steps: the whole clip's numbers, whatever strips and sizes, from one capture of the steady state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, waves
from torch import Tensor

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run.storage import OwnRows
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.seedvr2 import SeedVR2VAE
from tvae.pipeline.session import captures, new_graph
from tvae.pipeline.session.model import Model, open_model
from tvae.pipeline.session.outputs import Posterior

CONFIG = {"block_out_channels": (32, 64, 32), "layers_per_block": 1, "latent_channels": 4}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def module() -> SeedVR2VAE:
    torch.manual_seed(0)
    return SeedVR2VAE(**CONFIG).eval()


@pytest.fixture(scope="module")
def file(module: SeedVR2VAE, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seedvr2") / "ema_vae.safetensors"
    save_file(module.state_dict(), path)
    return path


def opened(file: Path, strip: int) -> Model:
    return open_model(str(file), device="cpu", dtype="float32", strip=strip)


def streamed(model: Model, side: Side, x: Tensor) -> Tensor:
    """Moments or pixels of a clip, step by step."""
    stream = model.stream(side)
    assert stream is not None
    return torch.cat([stream.step(chunk) for chunk in x.split(list(stream.cuts.sizes(x.shape[2])), 2)], 2)


def encoded(model: Model, x: Tensor) -> Tensor:
    """Moments of a clip, step by step."""
    return streamed(model, "encode", x)


def decoded(model: Model, z: Tensor) -> Tensor:
    """Pixels of a clip, step by step."""
    return streamed(model, "decode", z)


@pytest.mark.long
def test_the_size_of_caches_is_that_of_what_is_saved(file: Path) -> None:
    stream = opened(file, 1).stream("encode")
    assert stream is not None
    assert stream.nbytes == 0
    stream.step(torch.zeros(1, 3, next(iter(stream.cuts.sizes(None))), 16, 16))
    assert stream.nbytes == sum(cache.nbytes for cache in stream.saved()) > 0


def test_the_size_of_own_rows_is_that_of_all_rows() -> None:
    whole = torch.zeros(1, 4, 2, 6, 5, dtype=torch.bfloat16)
    own = OwnRows(whole[:, :, :, :2], tuple(whole.shape), Axis(3, 1, 6, 1), ((0, 2), (2, 6)))
    assert own.nbytes == whole.nbytes


FIVE: dict[str, dict[Side, tuple[int, ...]]] = {
    "AutoencoderKLWan": {"encode": (1, 5, 9, 13, 17), "decode": (1, 2, 3, 4, 5)},
    "AutoencoderKLQwenImage": {"encode": (1, 5, 9, 13, 17), "decode": (1, 2, 3, 4, 5)},
    "AutoencoderKLCogVideoX": {"encode": (1, 8, 9, 16, 17), "decode": (1, 2, 3, 4, 5)},
    "AutoencoderKLMagvit": {"encode": (1, 5, 9, 13, 17), "decode": (1, 2, 3, 4, 5)},
    "AutoencoderKLMochi": {"decode": (1, 2, 3, 4, 5)},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "strip"),
    [pytest.param(f, n) for f in FIVE for n in (2, 40)],
)
def test_steps_of_diffusers_models_are_their_reference(family: str, strip: int, tmp_path: Path) -> None:
    """Their own ``encode`` and ``decode`` of the whole clip: five lengths, and sizes other than the capture's."""
    tiny = TINY[family]
    module: Any = tiny.build()
    module.save_pretrained(tmp_path / "vae")
    model, wide = opened(tmp_path / "vae", strip), module.double()
    for side, lengths in FIVE[family].items():
        for frames in lengths:
            for height, width in ((4, 6), (5, 3)):
                scale, channels = (tiny.scale, 3) if side == "encode" else (1, tiny.latent[0])
                x = waves((1, channels, frames, scale * height, scale * width))
                with torch.no_grad():
                    wanted = wide.encode(x.double()).latent_dist if side == "encode" else wide.decode(x.double()).sample
                if side == "encode":
                    found = Posterior.from_moments(encoded(model, x))
                    assert relative_l2(found.mean, wanted.mean) <= TOLERANCE
                    assert found.logvar is not None
                    assert relative_l2(found.logvar, wanted.logvar) <= TOLERANCE
                else:
                    assert relative_l2(decoded(model, x), wanted) <= TOLERANCE


@pytest.mark.slow
def test_one_capture_of_a_step_serves_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a clip that does not lie in memory in order, as frames do not."""
    module: Any = TINY["AutoencoderKLMochi"].build()
    module.save_pretrained(tmp_path / "vae")
    model, wide = opened(tmp_path / "vae", 40), module.double()
    made: list[Any] = []
    monkeypatch.setattr(new_graph, "capture", lambda *args: made.append(args) or capture(*args))
    monkeypatch.setattr(captures.GraphStore, "load", lambda self, fits: [])
    for height, width in ((4, 6), (5, 3), (7, 8)):
        z = waves((3, 4, height, width)).transpose(0, 1)[None]
        with torch.no_grad():
            assert relative_l2(decoded(model, z), wide.decode(z.double()).sample) <= TOLERANCE
    assert len(made) == 2


@pytest.mark.slow
@pytest.mark.parametrize("strip", slow_but([2], [2, 40]))
def test_steps_are_the_whole_clip(file: Path, module: SeedVR2VAE, strip: int) -> None:
    """One capture of each step serves a second, odd size."""
    model = opened(file, strip)
    wide = SeedVR2VAE(**CONFIG).eval().double()
    wide.load_state_dict(module.state_dict())
    for height, width in ((4, 6), (5, 3)):
        x, z = waves((1, 3, 9, 4 * height, 4 * width)), waves((1, 4, 3, height, width))
        with torch.no_grad():
            mean = wide.encode(x.double()).latent_dist.mean
            pixels = wide.decode(z.double()).sample
        assert relative_l2(Posterior.from_moments(encoded(model, x)).mean, mean) <= TOLERANCE
        assert relative_l2(decoded(model, z), pixels) <= TOLERANCE


@pytest.mark.long
def test_two_clips_at_once_do_not_mix(file: Path) -> None:
    model = opened(file, 40)
    first, second = waves((1, 4, 2, 4, 4), 1), waves((1, 4, 2, 4, 4), 2)
    apart = [decoded(model, first), decoded(model, second)]
    streams = [model.stream("decode") for _ in range(2)]
    mixed: list[list[Tensor]] = [[], []]
    for t in range(2):
        for stream, clip, out in zip(streams, (first, second), mixed, strict=True):
            assert stream is not None
            out.append(stream.step(clip[:, :, t : t + 1]))
    assert all(torch.equal(torch.cat(out, 2), want) for out, want in zip(mixed, apart, strict=True))


def test_an_image_vae_has_no_steps() -> None:
    model = open_model("builtin", device="cpu")
    assert model.stream("encode") is None
    assert model.stream("decode") is None
