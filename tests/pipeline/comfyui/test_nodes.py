"""The installed file, imported as ComfyUI does it, and the nodes that it gives."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from stand_in_comfyui import Interrupted, ProgressBar, Vae, comfyui
from stand_in_comfyui_clips import ClipVae

from tvae.pipeline.comfyui.install import install
from tvae.pipeline.errors import UsageError


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """By their names in a workflow. Outputs go to the folder ``output``."""
    home = tmp_path / "ComfyUI"
    for name in ("custom_nodes", "models"):
        (home / name).mkdir(parents=True)
    path, _ = install(home)
    with comfyui(tmp_path / "output"):
        spec = importlib.util.spec_from_file_location("custom_nodes_x_tvae_nodes", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        extension = asyncio.run(module.comfy_entrypoint())
        yield {node.define_schema().node_id: node for node in asyncio.run(extension.get_node_list())}


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return got.shape == want.shape and float((got - want).norm() / want.norm()) < 1e-5


def latents(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 4, 12, 10, generator=torch.Generator().manual_seed(count))


def test_each_takes_what_its_schema_names(nodes: dict[str, Any]) -> None:
    assert {*nodes} == {"tvae_ExactVAE", "tvae_Decode", "tvae_Encode", "tvae_SaveVideo"}
    for node in nodes.values():
        schema, code = node.define_schema(), node.execute.__func__.__code__
        assert [name for _, name, _ in schema.inputs if name in code.co_varnames] == [n for _, n, _ in schema.inputs]
        assert code.co_argcount == 1 + len(schema.inputs)
        assert schema.display_name.endswith("(tvae)")


def test_a_vae_that_other_nodes_take(nodes: dict[str, Any]) -> None:
    vae, z = Vae(), latents()
    (exact,) = nodes["tvae_ExactVAE"].execute(vae).args
    assert isinstance(exact, Vae)
    assert close(exact.decode(z), vae.decode(z))
    (bounded,) = nodes["tvae_ExactVAE"].execute(vae, vram=" 100 GiB ", allow_whole=True).args
    assert bounded.first_stage_model._vram == 100 << 30
    assert bounded.first_stage_model._allow_whole


@pytest.mark.parametrize("wrapped", [False, True])
def test_decode_and_encode(nodes: dict[str, Any], wrapped: bool) -> None:
    vae, z = Vae(), latents()
    given = nodes["tvae_ExactVAE"].execute(vae).args[0] if wrapped else vae
    (picture,) = nodes["tvae_Decode"].execute({"samples": z}, given).args
    assert close(picture, vae.decode(z))
    with_alpha = torch.cat([picture, torch.rand_like(picture[..., :1])], -1)
    (found,) = nodes["tvae_Encode"].execute(with_alpha, given).args
    assert [*found] == ["samples"]
    assert close(found["samples"], vae.encode(picture))


def test_the_next_run_needs_no_new_copy(nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.comfyui import nodes as module

    made: list[Any] = []
    monkeypatch.setattr(module, "exact_vae", lambda vae: made.append(vae) or module_exact(vae))
    vae, other = Vae(), Vae()
    for given in (vae, vae, other, vae):
        nodes["tvae_Decode"].execute({"samples": latents(1)}, given)
    assert made == [vae, other, vae]


def test_patches_that_came_since_are_refused(nodes: dict[str, Any]) -> None:
    vae = Vae()
    nodes["tvae_Decode"].execute({"samples": latents(1)}, vae)
    vae.patcher.patches = {"first.weight": [1]}
    with pytest.raises(UsageError, match="LoRA"):
        nodes["tvae_Decode"].execute({"samples": latents(1)}, vae)


def test_what_was_made_goes_with_its_vae(nodes: dict[str, Any]) -> None:
    """It has weights of its own."""
    from tvae.pipeline.comfyui import nodes as module

    vae, other = Vae(), Vae()
    for given in (vae, other):
        nodes["tvae_Decode"].execute({"samples": latents(1)}, given)
    del vae
    gc.collect()
    assert len(module._last) == 1, "of the other one"
    del given, other
    gc.collect()
    assert module._last == []


def module_exact(vae: Any) -> Any:
    from tvae.pipeline.comfyui.exact import exact_vae

    return exact_vae(vae)


def test_latents_with_sound_beside_them(nodes: dict[str, Any]) -> None:
    vae, z = Vae(), latents()
    nested = SimpleNamespace(is_nested=True, unbind=lambda: [z, torch.zeros(1)])
    assert close(nodes["tvae_Decode"].execute({"samples": nested}, vae).args[0], vae.decode(z))


def test_clips_become_pictures(nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clip = torch.rand(1, 3, 8, 6, 3)
    monkeypatch.setattr(Vae, "decode", lambda self, samples: clip)
    assert torch.equal(nodes["tvae_Decode"].execute({"samples": latents()}, Vae()).args[0], clip[0])


@pytest.mark.parametrize(("fps", "rate"), [(24.0, "24"), (23.976, "2997/125"), (29.97, "2997/100")])
def test_a_video(nodes: dict[str, Any], tmp_path: Path, fps: float, rate: str) -> None:
    vae, z = Vae(), latents(5)
    z = torch.nn.functional.interpolate(z, scale_factor=(1, 1 / 6)).repeat_interleave(6, 3)[..., :10].repeat(1, 1, 1, 2)
    found = nodes["tvae_SaveVideo"].execute({"samples": z}, vae, fps, "clips/mine", 1.0)
    assert found.ui == [("mine_00001_.mp4", "clips", "output")]
    with av.open(str(tmp_path / "output" / "clips" / "mine_00001_.mp4")) as container:
        assert str(container.streams.video[0].average_rate) == rate
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    want = vae.decode(z).numpy() * 255
    assert frames.shape == want.shape
    assert abs(frames - want).mean() < 12  # colour at half the size


@pytest.mark.long
def test_a_video_in_steps(nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[ProgressBar] = []
    start = ProgressBar.__init__

    def started(self: ProgressBar, total: int) -> None:
        bars.append(self)
        start(self, total)

    monkeypatch.setattr(ProgressBar, "__init__", started)
    vae, z = ClipVae(), torch.randn(1, 4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    nodes["tvae_SaveVideo"].execute({"samples": z}, vae, 24.0, "mine", 1.0)
    assert (bars[0].total, bars[0].current) == (5, 5)
    with av.open(str(tmp_path / "output" / "mine_00001_.mp4")) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    want = vae.decode(z)[0].numpy() * 255
    assert frames.shape == want.shape
    assert abs(frames - want).mean() < 20  # colour at half the size


def test_a_video_that_was_cancelled(nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressBar, "most", 2)
    with pytest.raises(Interrupted):
        nodes["tvae_SaveVideo"].execute({"samples": latents(5)}, Vae(), 24.0, "mine", 18.0)
    assert [*(tmp_path / "output").iterdir()] == []
