"""What a run borrows of the libraries' settings, and gives back: cuDNN's search for a fast algorithm above all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TINY

from tvae import presets
from tvae.pipeline.device import backend_settings, kernels_of
from tvae.pipeline.session import session
from tvae.pipeline.session.model import open_model
from tvae.presets import Preset
from tvae.presets.text import text_of

BF16, HALF, FULL = torch.bfloat16, torch.float16, torch.float32


def flags() -> tuple[bool, bool, bool]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32


@pytest.mark.parametrize(
    ("wanted", "dtype", "how", "search"),
    [
        (True, BF16, {}, True),
        (True, HALF, {"steps": True}, True),
        (True, FULL, {}, False),
        (True, BF16, {"bounded": True}, False),
        (False, BF16, {"steps": True}, False),
        ("steps", BF16, {}, False),
        ("steps", BF16, {"steps": True}, True),
        ("steps", HALF, {"steps": True, "bounded": True}, False),
        ("steps", FULL, {"steps": True}, False),
    ],
)
def test_when_cudnn_searches(wanted: bool | str, dtype: torch.dtype, how: dict[str, bool], search: bool) -> None:
    preset = dataclasses.replace(presets.load("h200"), cudnn_benchmark=wanted)
    before = flags()
    with backend_settings(preset, dtype, **how):
        assert flags() == ((search, False, False) if dtype == FULL else (search, *before[1:]))
    assert flags() == before


def test_convolutions_are_pytorchs_where_memory_is_named() -> None:
    chosen = presets.load("h200")
    free, bounded = (kernels_of(chosen, bounded=bounded).levels for bounded in (False, True))
    differ = {
        operation: (level, bounded[operation]) for operation, level in free.items() if level != bounded[operation]
    }
    assert differ == dict.fromkeys(("conv_add", "conv3d", "down_conv", "enlarge_conv"), ("cuda", "native"))


@pytest.mark.slow
def test_steps_of_a_clip_search_and_whole_clips_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = TINY["AutoencoderKLWan"].build()
    module.save_pretrained(tmp_path / "vae")
    file = tmp_path / "mine.toml"
    file.write_text(text_of(dataclasses.replace(presets.load("cpu"), cudnn_benchmark="steps")), encoding="utf-8")
    seen: list[bool] = []
    real = session.backend_settings

    def settings(preset: Preset, dtype: torch.dtype, *, steps: bool = False, **how: Any) -> Any:
        seen.append(steps and preset.cudnn_benchmark == "steps")
        return real(preset, dtype, steps=steps, **how)

    monkeypatch.setattr(session, "backend_settings", settings)
    model = open_model(str(tmp_path / "vae"), device="cpu", dtype="bfloat16", preset=str(file))
    stream = model.stream("decode")
    assert stream is not None
    z = torch.randn(1, model.info.latent_channels, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    for chunk in z.split([*stream.cuts.sizes(2)], 2):
        stream.step(chunk)
    assert seen
    assert all(seen)
    seen.clear()
    model.decode(z)
    assert seen == [False]
