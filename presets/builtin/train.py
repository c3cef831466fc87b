"""Train the built-in VAE: a small KL autoencoder for photos (8x down, 16 latent channels, GroupNorm, no attention).

    python train.py --data FOLDER_OR_TARS... --out DIR --minutes 20

writes `config.json` and fp16 `diffusion_pytorch_model.safetensors` for diffusers' `AutoencoderKL.from_pretrained(DIR)`.

Method. All photos are decoded once into one uint8 tensor on the device. A step takes random crops (mirrored,
transposed), encodes them, draws from the posterior, decodes, and minimises the mean over the crops of
log(squared error + 0.01): between the squared error, for which only hard crops count, and the mean PSNR, for which
flat ones count as much. A small KL term keeps the latents bounded and robust to noise. Convolution weights, the first
and last aside, are trained with Muon (momentum, orthogonalised by Newton-Schulz iterations), all others with AdamW, on
one cosine schedule over the whole time. The exponential moving average of the weights is what is written.

Every 54th photo is held out; choices were made on those, and their PSNR (whole photos, posterior mean) is reported.
A run can be cut in parts with --pause-after: it goes on from the state in --out.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image, ImageOps
from safetensors.torch import save_file
from torch import Tensor, nn

Vae = Any  # an AutoencoderKL: diffusers carries no types
PHOTO = 320  # side of a training photo, pixels
HELD_OUT_EVERY = 54
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}

ARCHITECTURE: dict[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [32, 64, 128, 128],
    "layers_per_block": 1,
    "norm_num_groups": 16,
    "latent_channels": 16,
    "mid_block_add_attention": False,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "force_upcast": False,
    "sample_size": 256,
}


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters."""

    crop: int = 256
    batch: int = 28
    muon_rate: float = 1e-3
    adam_rate: float = 1e-3
    warmup_steps: int = 200
    kl_weight: float = 2e-3
    error_floor: float = 1e-2  # added under the logarithm to the squared error of values in [-1, 1]
    ema_decay: float = 0.999
    seed: int = 0


def read_photos(paths: list[Path]) -> Tensor:
    """All photos of folders and tar files, sorted by name, as uint8 [N,3,PHOTO,PHOTO] (centre square, Lanczos)."""
    files: dict[str, bytes] = {}
    for path in paths:
        if path.is_dir():
            files.update({str(p): p.read_bytes() for p in path.rglob("*") if p.suffix.lower() in SUFFIXES})
            continue
        with tarfile.open(path) as tar:
            for member in (m for m in tar if m.isfile() and Path(m.name).suffix.lower() in SUFFIXES):
                files[member.name] = cast(IO[bytes], tar.extractfile(member)).read()

    def decode(data: bytes) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return np.asarray(ImageOps.fit(image, (PHOTO, PHOTO), Image.Resampling.LANCZOS))

    if not files:
        raise SystemExit(f"no photos in {', '.join(map(str, paths))}")
    with ThreadPoolExecutor() as pool:
        photos = list(pool.map(decode, [files[name] for name in sorted(files)]))
    return torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2).contiguous()


def random_crops(photos: Tensor, batch: int, size: int, transpose: bool) -> Tensor:
    """Random crops of random photos, each mirrored at random, float32 [batch,3,size,size] in [-1,1]."""
    draw = partial(torch.randint, size=(batch, 1), device=photos.device)
    ramp = torch.arange(size, device=photos.device)
    rows, columns = (torch.where(draw(2) == 1, ramp, size - 1 - ramp) + draw(PHOTO - size + 1) for _ in range(2))
    crops = photos[draw(len(photos))[:, :, None], :, rows[:, :, None], columns[:, None, :]]  # [batch,size,size,3]
    axes = (0, 3, 2, 1) if transpose else (0, 3, 1, 2)
    return (crops.permute(axes).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


class ChannelsLastGroupNorm(nn.GroupNorm):
    """GroupNorm whose statistics are taken per channel first: what a compiler fuses well in channels-last memory."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        per_group = (len(x), self.num_groups, -1)
        mean = wide.mean((2, 3)).view(per_group).mean(2)
        square = wide.square().mean((2, 3)).view(per_group).mean(2)
        rate = ((square - mean.square()).clamp(min=0) + self.eps).rsqrt()
        repeat = self.num_channels // self.num_groups
        scale = self.weight * rate.repeat_interleave(repeat, 1)
        shift = self.bias - mean.repeat_interleave(repeat, 1) * scale
        return (wide * scale[:, :, None, None] + shift[:, :, None, None]).to(x.dtype)


def build(device: torch.device) -> Vae:
    """The autoencoder with fresh weights. Kept in eval mode: it has no dropout, and diffusers copies less so."""
    vae: Vae = AutoencoderKL(**ARCHITECTURE)
    vae.eval().to(device, memory_format=torch.channels_last)
    for module in vae.modules():
        if type(module) is nn.GroupNorm:
            module.__class__ = ChannelsLastGroupNorm
    return vae


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Roughly the nearest semi-orthogonal matrices of [k,rows,columns]: Muon's quintic Newton-Schulz iteration
    (Jordan et al. 2024). Rows and columns of zeros stay zero."""
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Muon for convolution weights, as [out, in*kh*kw] matrices, scaled to AdamW's usual step (0.2 per element):
    all matrices orthogonalised as one batch, padded with zeros to the largest, in bf16."""

    def __init__(self, weights: list[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        weights: list[Tensor] = group["params"]
        shapes = [(len(w), w[0].numel()) for w in weights]

        def parts(batch: Tensor) -> list[Tensor]:
            return [m[:r, :c].view_as(w) for m, (r, c), w in zip(batch, shapes, weights, strict=True)]

        gradients = [w.grad for w in weights if w.grad is not None]
        buffers = [self.state[w].setdefault("momentum", torch.zeros_like(w)) for w in weights]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, buffers, group["momentum"])
        largest = (len(weights), max(r for r, _ in shapes), max(c for _, c in shapes))
        batch = torch.zeros(largest, dtype=torch.bfloat16, device=weights[0].device)
        torch._foreach_copy_(parts(batch), nesterov)
        for weight, update, shape in zip(weights, parts(orthogonalise(batch)), shapes, strict=True):
            weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(shape)))


def reconstruct(vae: Vae, x: Tensor) -> tuple[Tensor, Tensor]:
    """One draw: (reconstruction [N,3,H,W], KL divergence from the unit Gaussian per latent element, scalar)."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        mean, logvar = vae.encoder(x).float().chunk(2, 1)
        logvar = logvar.clamp(-30, 20)
        latents = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        y = vae.decoder(latents)
    return y.float(), 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()


@torch.inference_mode()
def psnr(vae: Vae, photos: Tensor) -> Tensor:
    """PSNR in dB of each photo (uint8 [N,3,H,W]), whole, posterior mean, fp32; ascending."""
    values = []
    for some in photos.split(16):
        x = some.float() / 127.5 - 1
        error = (vae.decode(vae.encode(x).latent_dist.mean).sample.clamp(-1, 1) - x).square().mean((1, 2, 3))
        values.append(10 * torch.log10(4 / error))
    return torch.cat(values).sort().values


class Training:
    """Weights, their average, optimisers and the clock of one run."""

    def __init__(self, photos: Tensor, minutes: float, settings: Settings, compiled: bool) -> None:
        self.settings, self.seconds = settings, minutes * 60
        self.elapsed, self.steps = 0.0, 0
        torch.manual_seed(settings.seed)
        held_out = torch.arange(len(photos)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        self.photos, self.held_out = photos[~held_out], photos[held_out]
        self.vae, self.average = build(photos.device), build(photos.device).requires_grad_(False)
        self.average.load_state_dict(self.vae.state_dict())
        weights: dict[str, nn.Parameter] = dict(self.vae.named_parameters())
        inner = {n: w for n, w in weights.items() if w.ndim == 4 and "conv_in" not in n and "conv_out" not in n}
        others = [w for n, w in weights.items() if n not in inner]
        self.muon = Muon(list(inner.values()), settings.muon_rate)
        self.adam = torch.optim.AdamW(others, settings.adam_rate, (0.9, 0.99), weight_decay=0.0)
        self.parts: dict[str, Any] = {"vae": self.vae, "average": self.average, "muon": self.muon, "adam": self.adam}
        self.forward = torch.compile(reconstruct, dynamic=False, mode="reduce-overhead") if compiled else reconstruct

    def step(self) -> Tensor:
        """One step; returns the loss, still on the device."""
        s = self.settings
        x = random_crops(self.photos, s.batch, s.crop, transpose=self.steps % 2 == 1)
        y, divergence = self.forward(self.vae, x)
        error = (y - x).square().mean((1, 2, 3))
        loss = (error + s.error_floor).log().mean() + s.kl_weight * divergence
        loss.backward()
        rate = 0.5 + 0.5 * math.cos(math.pi * min(1.0, self.elapsed / self.seconds))
        rate *= min(1.0, (self.steps + 1) / s.warmup_steps)
        for optimiser, base in ((self.muon, s.muon_rate), (self.adam, s.adam_rate)):
            optimiser.param_groups[0]["lr"] = base * rate
            optimiser.step()
            optimiser.zero_grad()
        self.steps += 1
        decay = min(s.ema_decay, self.steps / (self.steps + 10))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.vae.parameters()), 1 - decay)
        return loss.detach()

    def run(self, pause_after: float) -> Iterator[str]:
        """Train until the time is over, or for `pause_after` seconds now; yields lines for the log."""
        start, before, loss = time.monotonic(), self.elapsed, torch.tensor(math.nan)
        while self.elapsed < self.seconds and self.elapsed - before < pause_after:
            loss = self.step()
            if self.steps % 50 == 0 and not math.isfinite(loss.item()):  # waits for the device: the clock is true
                raise SystemExit(f"step {self.steps}: the loss is {loss.item()}")
            self.elapsed = before + time.monotonic() - start
            if self.steps % 2000 == 0:
                yield self.report(loss)
        yield self.report(loss)

    def report(self, loss: Tensor) -> str:
        db = psnr(self.average, self.held_out)
        quality = f"held-out photos {db.mean():.3f} dB, the harder half {db[: (len(db) + 1) // 2].mean():.3f} dB"
        return f"{self.elapsed:5.0f} s, step {self.steps}, loss {loss.item():.4f}, {quality}"

    def save(self, file: Path) -> None:
        """Write the whole state, to go on from."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save(state | {"elapsed": self.elapsed, "steps": self.steps}, file.with_suffix(".tmp"))
        file.with_suffix(".tmp").replace(file)

    def load(self, file: Path) -> None:
        """Go on from what `save` wrote."""
        state = torch.load(file, self.photos.device, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.elapsed, self.steps = state["elapsed"], state["steps"]
        torch.manual_seed(self.settings.seed + self.steps)


@torch.inference_mode()
def write_model(vae: Vae, photos: Tensor, folder: Path) -> None:
    """config.json and fp16 weights, as diffusers reads them; the latents' shift and scale are those of the photos."""
    some = photos[:: max(1, len(photos) // 512)]
    means = [vae.encode(x.float() / 127.5 - 1).latent_dist.mean for x in some.split(16)]
    deviation, mean = torch.std_mean(torch.cat(means))
    vae.register_to_config(shift_factor=round(mean.item(), 4), scaling_factor=round(1 / deviation.item(), 4))
    config = {"_class_name": "AutoencoderKL"} | {k: v for k, v in vae.config.items() if not k.startswith("_")}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: value.half().contiguous() for name, value in vae.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders or tars of photos")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, the log and the state")
    parser.add_argument("--minutes", type=float, default=20, help="time of the whole training")
    parser.add_argument("--pause-after", type=float, default=math.inf, metavar="MINUTES", help="stop this run earlier")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    arguments = parser.parse_args()
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    photos = read_photos(arguments.data).to(arguments.device)
    training = Training(photos, arguments.minutes, Settings(), photos.is_cuda and not arguments.no_compile)
    state = folder / "state.pt"
    if state.exists():
        training.load(state)
    with (folder / "train.log").open("a") as log:
        for line in training.run(arguments.pause_after * 60):
            print(line, flush=True)
            print(line, file=log, flush=True)
            training.save(state)
    write_model(training.average, training.photos, folder)


if __name__ == "__main__":
    main()
