"""diffusers' pipelines with CPU offload on: whole calls with ``TiledVAE`` in place of the model, and without."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tiny_pipelines import IMAGES, PIPELINES, clip_of, image_of
from tiny_vaes import TINY, relative_l2

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.reference import reference_mode, unhooked

hooks = pytest.importorskip("accelerate.hooks")
MADE = {**IMAGES, **PIPELINES}


def result_of(name: str, pipeline: Any, call: dict[str, Any]) -> torch.Tensor:
    return image_of(pipeline, call) if name in IMAGES else clip_of(pipeline, call)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers' scheduler
@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("sdxl", True),
        ("flux", False),
        *(
            pytest.param(name, before, marks=pytest.mark.slow)
            for name, before in (("sdxl", False), ("flux", True), ("wan", True), ("wan", False), ("hunyuan", True))
        ),
        pytest.param("hunyuan", False, marks=pytest.mark.slow),
    ],
)
def test_with_cpu_offload(name: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: is the model wrapped before offload is switched on? The device that models come to is the CPU as well,
    where there is no other. accelerate's hook is asked for the VAE before it decodes."""
    pipeline, call = MADE[name]()
    with reference_mode(pipeline.vae):
        plain = result_of(name, pipeline, call)
    assert plain.std() > 1e-3
    pipeline, call = MADE[name]()
    own, brought = pipeline.vae, []
    bring = hooks.CpuOffload.pre_forward

    def noted(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        brought.append(module)
        return bring(self, module, *args, **kwargs)

    monkeypatch.setattr(hooks.CpuOffload, "pre_forward", noted)
    if before:
        pipeline.vae = TiledVAE(own, strip=2)
        pipeline.enable_model_cpu_offload(device="cpu")
    else:
        pipeline.enable_model_cpu_offload(device="cpu")
        pipeline.vae = TiledVAE(own, strip=2)
    for _ in range(2):
        del brought[:]
        assert relative_l2(result_of(name, pipeline, call), plain) <= 1e-5
        assert brought[-1] in (own, pipeline.vae)


@pytest.mark.long
def test_hooks_go_from_the_model_that_has_them() -> None:
    """And it has its own ``forward`` back, which does not become that of what wraps it."""
    from accelerate import cpu_offload_with_hook

    own = TINY["AutoencoderKL"].build()
    cpu_offload_with_hook(own, "cpu")
    assert "forward" in own.__dict__
    tiled = TiledVAE(own)
    assert tiled._hf_hook is own._hf_hook
    hooks.remove_hook_from_module(tiled, recurse=True)
    assert not hasattr(own, "_hf_hook")
    assert not hasattr(tiled, "_old_forward")
    assert own.forward.__func__ is type(own).forward
    assert "forward" not in tiled.__dict__
    with pytest.raises(AttributeError, match="nothing"):
        del tiled.nothing


@pytest.mark.long
def test_no_model_is_moved_while_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers asks the hook inside of ``decode``; with the exporter's tensors that fails now and then."""
    from accelerate import cpu_offload_with_hook

    own = TINY["AutoencoderKL"].build()
    cpu_offload_with_hook(own, "cpu")
    brought = []
    monkeypatch.setattr(hooks.CpuOffload, "pre_forward", lambda self, module, *args, **kwargs: brought.append(module))
    TiledVAE(own, strip=2).decode(TINY["AutoencoderKL"].input("decode", 6, 4))
    assert brought == [own]
    hook = own._hf_hook
    with unhooked(own):
        assert not hasattr(own, "_hf_hook")
    assert own._hf_hook is hook


def grouped(vae: torch.nn.Module, kind: str) -> None:
    cpu, how = torch.device("cpu"), {"num_blocks_per_group": 1} if kind == "block_level" else {}
    vae.enable_group_offload(onload_device=cpu, offload_device=cpu, offload_type=kind, **how)  # type: ignore[operator]


def cast(vae: torch.nn.Module) -> None:
    vae.enable_layerwise_casting(storage_dtype=torch.float32, compute_dtype=torch.float32)  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.parametrize(
    ("hook", "named"),
    [
        (partial(grouped, kind="leaf_level"), "'group_offloading' is on the VAE's 'encoder.conv_in'"),
        (partial(grouped, kind="block_level"), "'group_offloading' is on the VAE's 'encoder'"),
        (cast, "'layerwise_casting' is on the VAE's 'encoder.conv_in'"),
        (hooks.attach_align_device_hook, ""),
        (partial(hooks.attach_align_device_hook, offload=True), "accelerate moves the VAE's weights part by part"),
    ],
)
def test_weights_that_move_within_a_call(hook: Any, named: str) -> None:
    """They are refused in one line, in whatever order; hooks that leave the weights where they are are not."""
    x = TINY["AutoencoderKL"].input("decode", 6, 4)
    for wrapped in (True, False):
        own = TINY["AutoencoderKL"].build()
        tiled = TiledVAE(own, strip=2)
        hook(tiled if wrapped and named.startswith("'") else own)
        if named:
            with pytest.raises(UsageError, match=named):
                tiled.decode(x)
        else:
            tiled.decode(x)
