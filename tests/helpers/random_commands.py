"""Commands by chance: what a user may type, most of it right, over files of many kinds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from clips import write_clip
from PIL import Image
from tiny_vaes import TINY

__all__ = ["Commands", "make_pool"]

WRONG = 0.08
"""Chance that a value is one that is refused."""

Values = tuple[str, ...]
Option = tuple[float, Values, Values]
"""How often it is named, what it may be (nothing: a flag), and what is wrong."""

_COMMON: dict[str, Option] = {
    **{name: (often, (), ()) for name, often in {"--overwrite": 0.1, "--no-clobber": 0.06, "-n": 0.06}.items()},
    **{name: (often, (), ()) for name, often in {"--recursive": 0.1, "--json": 0.2, "-q": 0.1, "-v": 0.1}.items()},
    "--no-progress": (0.06, (), ()),
    "--dtype": (0.08, ("float32", "bfloat16", "float16"), ("int8",)),
    "--device": (0.08, ("cpu", "cpu:0"), ("cuda:99", "tpu")),
    "--strip": (0.08, ("1", "2", "1000"), ("0", "-3", "x")),
    "--vram": (0.08, ("8GiB", "2GiB"), ("1MiB", "lots", "0")),
    "--threads": (0.06, ("1", "2", "64"), ("0",)),
    "--batch": (0.08, ("1", "2", "auto"), ("0", "-1")),
    "--devices": (0.04, ("1", "cpu"), ("0", "cpu,cpu", "x")),
    "--preset": (0.06, ("auto", "cpu"), ("none",)),
    "--sandbox": (0.08, ("auto", "on", "off"), ("maybe",)),
}
_PARTS: dict[str, Option] = {"--split": (0.04, ("auto", "items", "rows"), ("x",))}
_READ: dict[str, Option] = {
    "--size": (0.15, ("32x32", "48x24", "8x8"), ("0x8", "9999999x8", "64", "axb")),
    "--fit": (0.1, ("contain", "cover", "stretch"), ("x",)),
    "--align": (0.1, ("pad", "crop", "error"), ("x",)),
    "--max-megapixels": (0.04, ("1", "1000"), ("0",)),
    "--alpha": (0.06, ("keep", "drop"), ("x",)),
}
_FILM: dict[str, Option] = {
    "--codec": (0.06, ("libx264", "mpeg4", "ffv1"), ("none",)),
    "--crf": (0.06, ("10", "51"), ("99", "-1")),
    "--pix-fmt": (0.06, ("yuv420p",), ("none",)),
    "--enc": (0.06, ("preset=fast", "compress_level=1", "quality=50"), ("compress_level=99", "x")),
    "--fps": (0.06, ("24", "30000/1001"), ("0", "x", "1/0")),
    "--color": (0.06, ("bt709", "bt2020:pc", "bt601:tv"), ("x",)),
    "--audio": (0.06, ("copy", "none"), ("x",)),
    "--alpha": (0.06, ("keep", "drop"), ("x",)),
}
_CACHE: dict[str, Option] = {
    "--buckets": (0.1, ("on", "off", "32-64/8"), ("64-32", "x")),
    "--no-upscale": (0.08, (), ()),
    "--flip": (0.08, (), ()),
    "--alpha-mask": (0.06, (), ()),
    "--posterior": (0.08, ("mean", "sample"), ("x",)),
    "--frames": (0.1, ("1", "5", "5,1"), ("0", "5,5", "x")),
    "--stride": (0.06, ("1", "3", "1,3"), ("0", "1,")),
    "--frame-sample": (0.06, ("1", "3"), ("0",)),
    "--max-frames": (0.06, ("1", "3"), ("0",)),
    "--start": (0.06, ("0", "2"), ("-1",)),
    "--target-fps": (0.06, ("5", "24"), ("0",)),
    "--shards": (0.06, ("1KB", "1GB"), ("0",)),
}
_SPACE: Option = (0.15, ("raw", "model"), ("x",))
_OPTIONS: dict[str, dict[str, Option]] = {
    "encode": {
        **_COMMON,
        **_PARTS,
        **_READ,
        "--space": _SPACE,
        "--posterior": (0.12, ("mean", "sample", "moments"), ("x",)),
        "--audio": (0.06, ("copy", "none"), ("x",)),
    },
    "decode": {**_COMMON, **_PARTS, **_FILM, "--space": _SPACE, "--key": (0.04, ("latents",), ("x",))},
    "roundtrip": {**_COMMON, **_PARTS, **_READ, **_FILM},
    "cache": {**_COMMON, **_CACHE},
    "convert": {"--space": _SPACE, "--to-space": _SPACE, "--overwrite": (0.2, (), ()), "--json": (0.2, (), ())},
    "inspect": {
        "--json": (0.3, (), ()),
        "--sandbox": _COMMON["--sandbox"],
        "--max-megapixels": _READ["--max-megapixels"],
    },
    "verify": {"--json": (0.3, (), ())},
    "plan": {name: _COMMON[name] for name in ("--json", "--dtype", "--device", "--strip", "--vram", "--devices")},
}
_OFTEN = {"encode": 5, "decode": 5, "roundtrip": 3, "cache": 5, "convert": 2, "inspect": 1, "verify": 1, "plan": 1}
_MEDIA = ("a.png", "odd.jpg", "gray.png", "alpha.png", "moving.gif", "turned.jpg", "x.webp", "16.png", "dot.bmp")
_FILMS = ("clip.mkv", "short.mkv", "odd.mkv", "folder")
_NO_MEDIA = ("-dash.png", "ü ñ [x].png", "text.txt", "empty.png", "cut.jpg", "text.png", "empty", "none.png", "*.png")
_LATENTS = ("lat/a.png.safetensors", "lat/odd.jpg.safetensors", "lat/clip.mkv.latents", "lat")
_FOREIGN = ("a.latent", "a.npz", "a.npy", "a.pt", "cut.safetensors")
_ENDS = {
    "encode": ("safetensors", "latents"),
    "decode": ("png", "jpg", "exr", "webp", "tiff", "mp4", "mkv"),
    "convert": ("safetensors", "latent", "npz", "npy", "pt"),
}
_ARCHITECTURES = {
    "kohya": ("sd", "sdxl"),
    "musubi": ("wan", "zi", "qi"),
    "ai-toolkit": ("sd1", "sdxl"),
    "simpletuner": ("sdxl", "anima"),
    "comfy": ("kl", "wan"),
    **dict.fromkeys(("ltx", "webdataset", "finetrainers"), ()),
}


class Commands:
    """Draws the words of commands. pool: see ``make_pool``. out: a folder for results that need not be there."""

    def __init__(self, seed: int, pool: Path, out: Path) -> None:
        self._random, self._pool, self._out = random.Random(seed), pool, out

    def draw(self) -> list[str]:
        """The words of one command."""
        command = self._random.choices([*_OFTEN], [*_OFTEN.values()])[0]
        words = [command]
        for name, (often, values, wrong) in self._drawn_options(command):
            if self._maybe(often):
                words += [name, *([self._value(values, wrong)] if values else [])]
        words += self._own(command)
        return [*words, "--", *self._inputs(command)]

    def _drawn_options(self, command: str) -> list[tuple[str, Option]]:
        found = [*_OPTIONS[command].items()]
        self._random.shuffle(found)
        return found

    def _own(self, command: str) -> list[str]:
        """What only this command has, or has its own values for."""
        words: list[str] = []
        if command == "cache":
            trainer = self._random.choice([*_ARCHITECTURES])
            words += ["--for", trainer, "--size", self._value(("64x64", "32x32"), ("7x7", "32"))]
            if (known := _ARCHITECTURES[trainer]) and self._maybe(0.9):
                words += ["--arch", self._value(known, ("x",))]
        if command == "plan":
            words += ["--shape", self._value(("64x48", "64x48x9", "8192x8192"), ("0x0", "x", "64x48x0"))]
        if command not in ("inspect", "verify") and self._maybe(0.6):
            vaes = ("builtin", "vae/kl", "vae/wan", "vae/kl/diffusion_pytorch_model.safetensors")
            vae = self._value(vaes, ("none", "a.png", "folder"))
            words += ["--vae", vae if vae == "builtin" else str(self._pool / vae)]
        if command in ("encode", "decode", "roundtrip", "cache"):
            words += ["-o", str(self._result(command))]
        return words

    def _inputs(self, command: str) -> list[str]:
        if command == "plan":
            return []
        latents = command in ("decode", "convert") or (command in ("inspect", "verify") and self._maybe(0.5))
        good = _LATENTS if latents else (*_MEDIA, *_FILMS)
        other = _FOREIGN if latents else _NO_MEDIA
        count = 1 if command in ("convert", "inspect", "verify") or self._maybe(0.6) else self._random.randint(1, 4)
        names = [self._random.choice(other if self._maybe(0.2) else good) for _ in range(count)]
        return [str(self._pool / name) for name in names] + ([str(self._result(command))] * (command == "convert"))

    def _result(self, command: str) -> Path:
        ends = _ENDS.get("decode" if command == "roundtrip" else command, ())
        if ends and (command == "convert" or self._maybe(0.25)):
            return self._out / f"x.{self._random.choice(ends)}"
        return self._out / "deep" if self._maybe(0.1) else self._out

    def _value(self, values: Sequence[str], wrong: Sequence[str]) -> str:
        return self._random.choice(wrong if self._maybe(WRONG) else values)

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance


def make_pool(folder: Path, tvae: Any) -> None:
    """Pictures, clips, latents, VAEs, and files that are none of these. tvae: runs a command, which must do."""
    folder.mkdir()
    rng = np.random.default_rng(0)

    def picture(width: int, height: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))

    turned = Image.Exif()
    turned[0x112] = 6
    picture(48, 32).save(folder / "a.png")
    picture(50, 34).save(folder / "odd.jpg")
    picture(40, 40).convert("L").save(folder / "gray.png")
    picture(33, 17).convert("RGBA").save(folder / "alpha.png")
    picture(32, 24).save(folder / "moving.gif", save_all=True, append_images=[picture(32, 24) for _ in range(3)])
    picture(64, 32).save(folder / "turned.jpg", exif=turned)
    picture(31, 47).save(folder / "x.webp")
    Image.fromarray(rng.integers(0, 65535, (24, 24), dtype=np.uint16)).save(folder / "16.png")
    picture(1, 1).save(folder / "dot.bmp")
    for name in ("-dash.png", "ü ñ [x].png"):
        picture(24, 24).save(folder / name)
    write_clip(folder / "clip.mkv", 7, sound=True, side=32)
    write_clip(folder / "short.mkv", 1, sound=False)
    _odd_clip(folder / "odd.mkv")
    (folder / "folder" / "below").mkdir(parents=True)
    (folder / "empty").mkdir()
    for name in ("p.png", "q.png", "below/r.png"):
        picture(40, 24).save(folder / "folder" / name)
    (folder / "text.txt").write_text("hello\n")
    (folder / "text.png").write_text("no picture")
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.jpg").write_bytes((folder / "odd.jpg").read_bytes()[:400])
    tvae("encode", *(folder / name for name in ("a.png", "odd.jpg", "clip.mkv")), "-o", folder / "lat")
    latents = folder / "lat" / "a.png.safetensors"
    for end in _ENDS["convert"][1:]:
        tvae("convert", latents, folder / f"a.{end}")
    (folder / "cut.safetensors").write_bytes(latents.read_bytes()[:-7])
    for name, vae in (("kl", "AutoencoderKL"), ("wan", "AutoencoderKLWan")):
        model: Any = TINY[vae].build()
        model.save_pretrained(folder / "vae" / name)


def _odd_clip(path: Path) -> None:
    """Four frames of 50x34."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 50, 34, "yuv444p"
        for number in range(4):
            frame = av.VideoFrame.from_ndarray(np.full((34, 50, 3), 40 * number, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
