"""The nodes, in ComfyUI's V3 schema. Imported by the file that ``tvae comfyui install`` writes, inside ComfyUI."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import folder_paths
from comfy.utils import ProgressBar
from comfy_api.latest import ComfyExtension, io, ui
from torch import Tensor

from tvae.pipeline.comfyui.exact import exact_vae, is_exact
from tvae.pipeline.comfyui.video import write_video

__all__ = ["comfy_entrypoint"]

_CATEGORY = "tvae"
_last: list[tuple[weakref.ref[Any], Any]] = []
"""The VAE that was wrapped last for a node that was given a plain one, and what it became: the next run needs no new
graphs."""


class ExactVAE(io.ComfyNode):
    """A VAE in, a VAE out."""

    @classmethod
    def define_schema(cls) -> Any:
        return io.Schema(
            node_id="tvae_ExactVAE",
            display_name="Exact VAE (tvae)",
            category=_CATEGORY,
            description="The VAE, computed in strips with the numbers of the untiled model. All nodes take it.",
            inputs=[
                io.Vae.Input("vae"),
                io.String.Input(
                    "vram",
                    default="",
                    optional=True,
                    tooltip="GPU memory that ComfyUI may hold in all while this VAE works, such as 8GiB. Empty: what "
                    "is free.",
                ),
                io.Boolean.Input(
                    "allow_whole",
                    default=False,
                    optional=True,
                    tooltip="Run operations that cannot be cut on whole values: exact, in more memory.",
                ),
            ],
            outputs=[io.Vae.Output()],
        )

    @classmethod
    def execute(cls, vae: Any, vram: str = "", allow_whole: bool = False) -> Any:
        return io.NodeOutput(exact_vae(vae, vram.strip() or None, allow_whole=allow_whole))


class Decode(io.ComfyNode):
    """Latents to pictures."""

    @classmethod
    def define_schema(cls) -> Any:
        return io.Schema(
            node_id="tvae_Decode",
            display_name="VAE Decode, exact (tvae)",
            category=_CATEGORY,
            description="Decodes latents in strips, with the numbers of the untiled model.",
            inputs=[io.Latent.Input("samples"), io.Vae.Input("vae")],
            outputs=[io.Image.Output()],
        )

    @classmethod
    def execute(cls, samples: dict[str, Any], vae: Any) -> Any:
        pictures = _exact(vae).decode(_latents(samples))
        return io.NodeOutput(pictures.flatten(0, -4))


class Encode(io.ComfyNode):
    """Pictures to latents."""

    @classmethod
    def define_schema(cls) -> Any:
        return io.Schema(
            node_id="tvae_Encode",
            display_name="VAE Encode, exact (tvae)",
            category=_CATEGORY,
            description="Encodes images in strips, with the numbers of the untiled model.",
            inputs=[io.Image.Input("pixels"), io.Vae.Input("vae")],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, pixels: Tensor, vae: Any) -> Any:
        exact = _exact(vae)
        return io.NodeOutput({"samples": exact.encode(pixels[..., : exact.output_channels])})


class SaveVideo(io.ComfyNode):
    """Latents to a video file."""

    @classmethod
    def define_schema(cls) -> Any:
        return io.Schema(
            node_id="tvae_SaveVideo",
            display_name="Save video, streamed (tvae)",
            category=_CATEGORY,
            description="Decodes latents into an MP4. Image VAEs and those of Wan and Qwen-Image decode step by step, "
            "and each frame is written as it comes, so that a long clip takes no more memory. Other video VAEs decode "
            "the clip first.",
            inputs=[
                io.Latent.Input("samples"),
                io.Vae.Input("vae"),
                io.Float.Input("fps", default=24.0, min=1.0, max=240.0, step=0.001),
                io.String.Input("filename_prefix", default="video/tvae"),
                io.Float.Input("crf", default=18.0, min=0.0, max=51.0, step=1.0, tooltip="Lower: better and larger."),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, samples: dict[str, Any], vae: Any, fps: float, filename_prefix: str, crf: float) -> Any:
        latents = _latents(samples)
        exact = _exact(vae)
        progress = ProgressBar(exact.frame_count(latents))
        subfolder = ""

        def named(width: int, height: int) -> Path:
            nonlocal subfolder
            output = folder_paths.get_output_directory()
            folder, name, count, subfolder, _ = folder_paths.get_save_image_path(filename_prefix, output, width, height)
            return Path(folder) / f"{name}_{count:05}_.mp4"

        frames: Iterator[Tensor] = exact.frames(latents)
        path = write_video(frames, named, fps, crf, lambda: progress.update(1))
        return io.NodeOutput(ui=ui.PreviewVideo([ui.SavedResult(path.name, subfolder, io.FolderType.output)]))


class Extension(ComfyExtension):
    """What ComfyUI asks for its nodes."""

    async def get_node_list(self) -> list[type]:
        return [ExactVAE, Decode, Encode, SaveVideo]


async def comfy_entrypoint() -> Extension:
    """Found by ComfyUI by its name."""
    return Extension()


def _exact(vae: Any) -> Any:
    if is_exact(vae):
        return vae
    if vae.patcher.patches or not _last or _last[0][0]() is not vae:  # patches: exact_vae refuses them
        exact: Any = exact_vae(vae)
        _last[:] = [(weakref.ref(vae, _forget), exact)]
    return _last[0][1]


def _forget(gone: weakref.ref[Any]) -> None:
    """Of a VAE that ComfyUI has let go of; what it became has weights of its own."""
    _last[:] = [kept for kept in _last if kept[0] is not gone]


def _latents(samples: dict[str, Any]) -> Tensor:
    """The latents of the picture, of which a video with sound has two."""
    latents = samples["samples"]
    found: Tensor = latents.unbind()[0] if getattr(latents, "is_nested", False) else latents
    return found
