"""What tvae's nodes touch of ComfyUI, small and written anew: modules to import, a VAE, a model inside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Interrupted(Exception):
    """What a user's Cancel raises in a node."""


def sliced_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As where little memory is free: in slices whose number depends on the size."""
    n, c, *sizes = q.shape
    q, k, v = (t.reshape(n, c, -1) for t in (q, k, v))
    weights = [(q[:, :, i : i + 7].transpose(1, 2) @ k * c**-0.5).softmax(-1) for i in range(0, q.shape[2], 7)]
    return (torch.cat(weights, 1) @ v.transpose(1, 2)).transpose(1, 2).reshape(n, c, *sizes)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(2, 8), nn.Conv2d(8, 24, 1)
        self.optimized_attention = sliced_attention

    def forward(self, x: Tensor) -> Tensor:
        return x + self.optimized_attention(*self.qkv(self.norm(x)).chunk(3, 1))


class Model(nn.Module):
    """4 channels at a quarter of the size; encode and decode give tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.norm = nn.Conv2d(4, 8, 3, padding=1), Attention(), nn.GroupNorm(4, 8)
        self.last = nn.Conv2d(8, 3, 3, padding=1)
        self.into, self.out = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 4, 1)
        self.register_buffer("shift", torch.tensor(0.1))

    def decode(self, z: Tensor) -> Tensor:
        h = self.norm(self.middle(self.first(z + self.shift)))
        return self.last(nn.functional.interpolate(nn.functional.silu(h), scale_factor=4.0))

    def encode(self, x: Tensor) -> Tensor:
        return self.out(self.middle(self.into(x)))


class ModelPatcher:
    """Notes things in the modules, as ComfyUI's do."""

    def __init__(self, model: nn.Module, load_device: Any, offload_device: Any) -> None:
        self.model, self.load_device, self.offload_device = model, load_device, offload_device
        self.patches: dict[str, Any] = {}
        self.loads = 0
        model.device = offload_device
        for part in model.modules():
            part.weight_comfy_model_dtype, part.comfy_patched_weights = torch.float32, True

    def load(self) -> None:
        self.loads += 1


class Vae:
    """Decodes one of a batch at a time, and in tiles where memory runs out."""

    latent_dim, output_channels, extra_1d_channel = 2, 3, None

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.first_stage_model = Model().eval().requires_grad_(False)
        self.device = torch.device("cpu")
        self.patcher = ModelPatcher(self.first_stage_model, self.device, self.device)
        self.disable_offload = False
        self.memory_used_decode = lambda shape, dtype: 1e9 * shape[2]
        self.memory_used_encode = lambda shape, dtype: 2e9 * shape[2]
        self.asked: list[float] = []

    def throw_exception_if_invalid(self) -> None:
        if self.first_stage_model is None:
            raise RuntimeError("no VAE")

    def decode(self, samples: Tensor) -> Tensor:
        self.asked.append(self.memory_used_decode(samples.shape, torch.float32))
        try:
            found = torch.cat([self.first_stage_model.decode(one) for one in samples.split(1)])
        except torch.OutOfMemoryError:
            found = self.decode_tiled_(samples)
        return ((found + 1) / 2).clamp(0, 1).movedim(1, -1)

    def encode(self, pixels: Tensor) -> Tensor:
        pixels = pixels.movedim(-1, 1) * 2 - 1
        self.asked.append(self.memory_used_encode(pixels.shape, torch.float32))
        try:
            return self.first_stage_model.encode(pixels)
        except torch.OutOfMemoryError:
            return self.encode_tiled_(pixels)

    def decode_tiled(self, samples: Tensor, tile_x: int = 4, tile_y: int = 4) -> Tensor:
        return ((self.decode_tiled_(samples) + 1) / 2).clamp(0, 1).movedim(1, -1)

    def encode_tiled(self, pixels: Tensor, tile_x: int = 16, tile_y: int = 16) -> Tensor:
        return self.encode_tiled_(pixels.movedim(-1, 1) * 2 - 1)

    def decode_tiled_(self, samples: Tensor) -> Tensor:
        return torch.cat([self.first_stage_model.decode(rows) for rows in samples.split(4, 2)], 2)

    def encode_tiled_(self, pixels: Tensor) -> Tensor:
        return torch.cat([self.first_stage_model.encode(rows) for rows in pixels.split(16, 2)], 2)


class ProgressBar:
    """Counts, and is cancelled after ``most`` updates."""

    most = 1 << 30

    def __init__(self, total: int) -> None:
        self.total, self.current = total, 0

    def update(self, value: int) -> None:
        self.current += value
        if self.current > self.most:
            raise Interrupted


def _modules(output: Path) -> Iterator[ModuleType]:
    def module(name: str, **held: Any) -> ModuleType:
        found = ModuleType(name)
        vars(found).update(held)
        return found

    def told(kind: str) -> Any:
        made = SimpleNamespace(Input=lambda name, **more: (kind, name, more), Output=lambda **more: (kind, more))
        return made

    kinds = {kind: told(kind) for kind in ("Vae", "Latent", "Image", "String", "Boolean", "Float")}
    io = SimpleNamespace(**kinds, Schema=SimpleNamespace, ComfyNode=object, FolderType=SimpleNamespace(output="output"))
    io.NodeOutput = lambda *args, ui=None: SimpleNamespace(args=args, ui=ui)
    ui = SimpleNamespace(PreviewVideo=list, SavedResult=lambda *three: three)

    def place(prefix: str, folder: str, width: int, height: int) -> tuple[str, str, int, str, str]:
        inner, _, name = prefix.rpartition("/")
        where = Path(folder, inner)
        where.mkdir(parents=True, exist_ok=True)
        return str(where), name, len([*where.iterdir()]) + 1, inner, prefix

    yield module("comfy")
    yield module("comfy.model_patcher", ModelPatcher=ModelPatcher)
    yield module("comfy.model_management", load_models_gpu=lambda models, **_: [one.load() for one in models])
    yield module("comfy.utils", ProgressBar=ProgressBar)
    yield module("comfy_api")
    yield module("comfy_api.latest", ComfyExtension=object, io=io, ui=ui)
    yield module("folder_paths", get_output_directory=lambda: str(output), get_save_image_path=place)


@contextmanager
def comfyui(output: Path) -> Iterator[None]:
    """While the block runs, ComfyUI can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _modules(output):
            patch.setitem(sys.modules, module.__name__, module)
        nodes = "tvae.pipeline.comfyui.nodes"
        try:
            yield
        finally:
            sys.modules.pop(nodes, None)
