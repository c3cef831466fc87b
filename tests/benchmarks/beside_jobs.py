"""What jobs are measured against, each in a process of its own that prints one line of JSON.

``python beside_jobs.py REQUEST``, a JSON object with ``what``:

- *plain*: the script that one would write with diffusers: a DataLoader, the VAE, one file a photo. ``seconds`` without
  imports, loading and the first two calls, for ``photos``.
- *engine*: pictures that are on the device already, over and over.
- *calls*: ``TiledVAE.encode`` and diffusers' own call over ten sizes in turn.
- *film*: the frames of a clip read as ``tvae encode`` reads them, or written as ``tvae decode`` writes them; no more.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor


class Photos(torch.utils.data.Dataset[tuple[str, Tensor]]):
    """As a training script has them."""

    def __init__(self, folder: str, most: int) -> None:
        self._files = sorted(Path(folder).iterdir())[:most]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[str, Tensor]:
        with Image.open(self._files[number]) as image:
            levels = torch.from_numpy(np.array(image.convert("RGB")))
        return self._files[number].name, levels.permute(2, 0, 1).float().div(127.5).sub(1)


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """Photos to latents, or latents to PNGs (one at a time)."""
    import diffusers
    from safetensors.torch import load_file, save_file

    device, dtype = torch.device(request["device"]), getattr(torch, request["dtype"])
    vae = _vae(diffusers, request, device, dtype)
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    if request["side"] == "decode":
        files = sorted(Path(request["folder"]).iterdir())[: request["most"]]
        for number, file in enumerate(files):
            if number == 2:
                begin = _now(device)
            latents = load_file(file)["latents"].to(device, dtype).unsqueeze(0)
            pixels = vae.decode(latents).sample[0].float().add(1).mul(127.5).round().clamp(0, 255).byte()
            Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy()).save(out / f"{number}.png")
        return {"photos": len(files) - 2, "seconds": _now(device) - begin}
    loader = torch.utils.data.DataLoader(
        Photos(request["folder"], request["most"]),
        batch_size=request["batch"],
        num_workers=request["workers"],
        pin_memory=device.type == "cuda",
    )
    photos, begin = 0, 0.0
    for number, (names, pixels) in enumerate(loader):
        if number == 2:
            photos, begin = 0, _now(device)
        latents = vae.encode(pixels.to(device, dtype, non_blocking=True)).latent_dist.mode().cpu()
        for name, one in zip(names, latents, strict=True):
            save_file({"latents": one.contiguous()}, out / f"{name}.safetensors")
        photos += len(names)
    return {"photos": photos, "seconds": _now(device) - begin}


def engine(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds a picture, the best number in a call."""
    from tvae.pipeline.session.model import open_model
    from tvae.pipeline.session.runner import RECORDED_AT

    model = open_model(request["vae"], dtype=request["dtype"], device=request["device"])
    width, height = request["size"]
    best: dict[str, Any] = {"seconds": float("inf")}
    for batch in request["batches"]:
        if request["side"] == "encode":
            x = torch.rand(batch, 3, height, width, device=model.device).mul(2).sub(1).to(model.dtype)
            run = lambda x=x: model.encode(x)  # noqa: E731
        else:
            factor, channels = model.info.spatial_factor, model.info.latent_channels
            x = torch.randn(batch, channels, height // factor, width // factor, device=model.device).to(model.dtype)
            run = lambda x=x: model.decode(x)  # noqa: E731
        for _ in range(RECORDED_AT + 1):
            run()
        calls, begin = 0, _now(model.device)
        while calls < 3 or (calls < 50 and time.perf_counter() - begin < request["longest"]):
            run()
            calls += 1
        seconds = (_now(model.device) - begin) / (calls * batch)
        if seconds < best["seconds"]:
            best = {"seconds": seconds, "batch": batch}
    return best


def calls(request: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds a call over sizes in turn, of tvae and of diffusers, and what a size's first call adds, at most.

    Python's collector has looked through what the imports and the first call left, a third of a second each time.
    """
    import diffusers

    from tvae.pipeline.tiled_vae import TiledVAE

    device, dtype = torch.device(request["device"]), getattr(torch, request["dtype"])
    vae = _vae(diffusers, request, device, dtype)
    inputs = [
        torch.rand(1, 3, height, width, device=device).mul(2).sub(1).to(dtype) for width, height in request["sizes"]
    ]
    found: dict[str, Any] = {}
    for name, run in (("tvae", TiledVAE(vae).encode), ("diffusers", vae.encode)):
        run(inputs[0])
        gc.collect()
        seconds: list[list[float]] = []
        for _ in range(3):
            seconds.append([])
            for x in inputs:
                begin = _now(device)
                run(x)
                seconds[-1].append(_now(device) - begin)
        found[name] = sum(map(sum, seconds)) / (3 * len(inputs)) * 1e3
        found[f"{name}_rounds"] = [round(sum(times) / len(inputs) * 1e3, 1) for times in seconds]
        found[f"{name}_first"] = max(first - third for first, third in zip(seconds[0], seconds[2], strict=True)) * 1e3
    return found


def film(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds a frame: from the first to the last read, or from an open file to one that has its name."""
    from tvae.pipeline.media import open_reader, open_writer

    begin = time.perf_counter()
    with open_reader(Path(request["film"])) as reader:
        frames = []
        for frame in reader:
            frames.append(frame)
            if len(frames) == 1:
                begin = time.perf_counter()
        seconds, count = time.perf_counter() - begin, len(frames) - 1
        if request["side"] == "decode":
            with open_writer(request["out"], reader.info.spec) as writer:
                begin = time.perf_counter()
                for frame in frames:
                    writer.write(frame)
                writer.commit()
            seconds, count = time.perf_counter() - begin, len(frames)
    return {"seconds": seconds / count}


def _vae(diffusers: Any, request: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    config = json.loads((Path(request["vae"]) / "config.json").read_text())
    return getattr(diffusers, config["_class_name"]).from_pretrained(request["vae"]).to(device, dtype).eval()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    with torch.no_grad():
        measures = {"plain": plain, "engine": engine, "calls": calls, "film": film}
        print(json.dumps(measures[asked["what"]](asked)), flush=True)
