"""The commands that only tell: preset, inspect, plan, models, doctor."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

Tvae = Callable[..., Result]


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_presets(tvae: Tvae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [line["name"] for line in objects(tvae("preset", "list", "--json"))]
    assert {"cpu", "h200", "rtx40"} <= set(names)
    assert "h200" in tvae("preset", "list").stdout
    assert objects(tvae("preset", "show", "h200", "--json"))[0]["dtype"] == "bfloat16"
    assert "bfloat16" in tvae("preset", "show", "h200").stdout
    mine = tmp_path / "mine.toml"
    assert tvae("preset", "export", "cpu", "-o", mine).exit_code == 0
    assert mine.read_text() == tvae("preset", "export", "cpu").stdout
    assert tvae("preset", "export", "h200", "-o", mine).exit_code == 2
    assert tvae("preset", "export", "h200", "-o", mine, "--overwrite").exit_code == 0
    assert objects(tvae("preset", "show", mine, "--json"))[0]["dtype"] == "bfloat16"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(mine.read_text().replace('default = "triton"', 'default = "trition"'))
    failing = (["show", "none-such"], ["export", "none-such"], ["show"], ["none-such"], ["show", wrong])
    for arguments in failing:
        result = tvae("preset", *arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_inspect(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    tvae("encode", photo, "-o", tmp_path / "lat")
    latents = tmp_path / "lat" / "photo.png.safetensors"
    media, made = objects(tvae("inspect", photo, latents, "--json"))
    assert (media["type"], media["width"], media["height"]) == ("media", 30, 20)
    assert (made["type"], made["kind"]) == ("latents", "image")
    assert "AutoencoderStandIn" in tvae("inspect", latents).stdout
    (tmp_path / "text.mp4").write_text("no video")
    result = tvae("inspect", tmp_path / "text.mp4", photo)
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)
    assert "30" in result.stdout
    assert tvae("inspect", tmp_path / "nope").exit_code == 2
    assert tvae("inspect", tmp_path).exit_code == 3


def test_inspect_a_vae(tvae: Tvae, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    config = '{"_class_name": "AutoencoderKL", "scaling_factor": 0.5, "block_out_channels": [8, 8, 8, 8]}'
    (tmp_path / "config.json").write_text(config)
    save_file({"x": torch.zeros(3, 4)}, tmp_path / "diffusion_pytorch_model.safetensors")
    (vae,) = objects(tvae("inspect", tmp_path, "--json"))
    assert (vae["type"], vae["class"], vae["parameters"], vae["dtype"]) == ("vae", "AutoencoderKL", 12, "float32")
    assert (vae["geometry"]["spatial"], vae["geometry"]["temporal"]) == (8, None)
    told, weights = tvae("inspect", tmp_path).stdout.splitlines(), tmp_path / "diffusion_pytorch_model.safetensors"
    assert told[:4] == [
        f"{tmp_path}: an image VAE: AutoencoderKL (Stable Diffusion 1 to 3, SDXL, FLUX.1)",
        "  latents   4 channels, one latent for 8x8 pixels",
        f"  weights   0.0 million, float32, {weights.stat().st_size} B in 1 file",
        "details",
    ]
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKLCogVideoX", "scaling_factor": 2}')
    assert "one latent for 8x8 pixels and 4 frames" in tvae("inspect", tmp_path).stdout
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderUnheardOf", "scaling_factor": 2}')
    (vae,) = objects(tvae("inspect", tmp_path, "--json"))
    assert (vae["geometry"], vae["note"]) == (None, None)
    assert tvae("inspect", tmp_path).stdout.startswith(f"{tmp_path}: a VAE: AutoencoderUnheardOf\n  weights ")
    (tmp_path / "config.json").write_text(
        '{"_class_name": "AutoencoderKL", "scaling_factor": 2, "block_out_channels": 5}'
    )
    result = tvae("inspect", tmp_path)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_inspect_says_why_a_vae_is_not_used(tvae: Tvae, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderOobleck"}')
    save_file({"w": torch.zeros(2)}, tmp_path / "diffusion_pytorch_model.safetensors")
    (vae,) = objects(tvae("inspect", tmp_path, "--json"))
    assert vae["not_used"] == "of sound; TiledVAE does not run it, either"
    assert (vae["note"], vae["geometry"]) == (None, None)
    told = tvae("inspect", tmp_path).stdout.splitlines()
    assert told[1] == "  not used  by the command line: of sound; TiledVAE does not run it, either"


def test_inspect_begins_with_the_main_facts(tvae: Tvae, photo: Path, clip: Path, tmp_path: Path) -> None:
    tvae("encode", photo, clip, "-o", tmp_path / "lat")

    def told(path: Path) -> list[str]:
        before, _, details = tvae("inspect", path).stdout.partition("details\n")
        assert details
        return before.splitlines()

    assert told(photo)[:2] == [f"{photo}: an image, 30x20", "  pixels    rgb24, 8 bits, no alpha"]
    assert told(photo)[2] == f"  on disk   {photo.stat().st_size / 1024:.1f} KiB, png"
    latents = tmp_path / "lat" / "photo.png.safetensors"
    assert told(latents)[:4] == [
        f"{latents}: latents of an image, complete",
        "  source    photo.png, 30x20",
        "  vae       builtin (AutoencoderStandIn)",
        "  latents   3x3x4, float32, raw space",
    ]
    assert told(clip)[0] == f"{clip}: a video, 32x24, 29.97 frames a second, 0.2 s", "Matroska does not say how many"
    folder = tmp_path / "lat" / "clip.mkv.latents"
    assert told(folder)[0] == f"{folder}: latents of a video, complete"
    assert told(folder)[1] == "  source    clip.mkv, 32x24, 5 frames, 29.97 frames a second"
    assert told(folder)[3] == "  latents   3x5x3x4, float32, raw space"
    part = folder / "000000.safetensors"
    assert told(part)[0] == f"{part}: latents of a video, one file of a folder"
    assert objects(tvae("inspect", folder, part, "--json"))[1]["complete"] is False
    (folder / "index.json").unlink()
    result = tvae("inspect", folder)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "its encode was interrupted" in result.stderr


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Five frames at 30000/1001 a second."""
    import av
    import numpy as np

    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=Fraction(30000, 1001))
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for n in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((24, 32, 3), 9 * n, np.uint8))))
        container.mux(stream.encode(None))
    return path


def test_plan(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    result = tvae("plan", "--shape", "200x100")
    told = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [line.split(":")[0] for line in told] == ["encode 1x3x104x200", "decode 1x3x13x25"]
    assert all("fits in" in line for line in told)
    assert "  time    about 0.25 s, bound by the device's arithmetic" in result.stdout
    assert "table" not in result.stdout
    result = tvae("plan", "--shape", "200x100", "--side", "encode", "-v")
    assert "table of encode (1, 3, 104, 200)" in result.stdout
    assert result.stdout.count("halo") == 1, "the legend"
    (line,) = objects(tvae("plan", photo, "--side", "encode", "--json"))
    assert (line["side"], line["shape"]) == ("encode", [1, 3, 24, 32])
    tvae("encode", photo, "-o", tmp_path / "lat")
    result = tvae("plan", tmp_path / "lat" / "photo.png.safetensors", "--side", "decode")
    assert result.stdout.startswith("decode 1x3x3x4: fits in ")
    for arguments in (
        [],
        [photo, "--shape", "8x8"],
        ["--shape", "8"],
        [tmp_path / "nope"],
        ["--shape", "8x8", "--side", "x"],
    ):
        result = tvae("plan", *arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_models(tvae: Tvae) -> None:
    rows = objects(tvae("models", "--json"))
    configs = {row["class_name"]: row["configs"] for row in rows if row["type"] == "model"}
    assert [configs[f"Autoencoder{name}"] for name in ("KL", "KLWan", "DC")] == [["sdxl"], ["wan21"], []]
    others = {row["class_name"]: row["runs"] for row in rows if row["type"] == "other_model"}
    assert others["ConsistencyDecoderVAE"] == ["encode"]
    assert not others.keys() & configs.keys()
    told = tvae("models").stdout
    assert "Wan 2.1 and 2.2 (--config wan21; --vae-of wan2.1, wan2.2)" in told
    families, _, rest = told.partition("\n\nnot for the command line;")
    assert "AutoencoderKLWan" in families
    assert "AutoencoderOobleck             -              of sound\n" in rest


def test_an_unknown_config_is_refused_before_any_work(tvae: Tvae, tmp_path: Path) -> None:
    for arguments in (["bench", "vae"], ["preset", "tune", "-o", tmp_path / "mine.toml"]):
        result = tvae(*arguments, "--config", "sdlx", "--device", "cpu")
        assert result.exit_code == 2
        assert result.stderr.startswith("tvae: unknown config 'sdlx'; did you mean 'sdxl'? (there are: sdxl, ")
    assert not [*tmp_path.iterdir()]


def test_doctor(tvae: Tvae) -> None:
    (report,) = objects(tvae("doctor", "--json"))
    assert {"torch", "devices", "media", "kernels", "notes"} <= report.keys()
    assert report["devices"][-1]["device"] == "cpu"
    assert "libav" in tvae("doctor").stdout


def test_doctor_looks_for_what_python_compiled(tvae: Tvae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often have ``PYTHONDONTWRITEBYTECODE``, and every command starts twice as slowly."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    for set_, why in ((True, "PYTHONDONTWRITEBYTECODE is set"), (False, f"there is no {tmp_path}")):
        monkeypatch.setattr(sys, "dont_write_bytecode", set_)
        (report,) = objects(tvae("doctor", "--json"))
        (note,) = [note for note in report["notes"] if "compiled files" in note]
        assert why in note
        assert f"run python -m compileall -q {Path(torch.__file__).parents[1]} once" in note
    kept = Path(importlib.util.cache_from_source(torch.__file__))
    kept.parent.mkdir(parents=True)
    kept.touch()
    (report,) = objects(tvae("doctor", "--json"))
    assert not [note for note in report["notes"] if "compiled files" in note]


def test_doctor_says_of_every_kernel_level_whether_it_runs(tvae: Tvae, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"triton": "triton is not installed", "cuda": "no NVIDIA GPU"}
    monkeypatch.setattr("tvae.kernels.why_missing", missing.get)
    monkeypatch.setattr("tvae.kernels.cudnn_frontend.missing", lambda: "the frontend is not installed")
    lines = tvae("doctor").stdout.splitlines()
    begin = lines.index("kernels")
    assert lines[begin + 1 : begin + 7] == [
        "  native   runs here",
        "  script   runs here",
        "  compile  runs here",
        "  triton   triton is not installed",
        "  cuda     no NVIDIA GPU",
        "  cudnn    the frontend is not installed",
    ]
    (report,) = objects(tvae("doctor", "--json"))
    assert report["kernels"] == dict.fromkeys(("native", "script", "compile"), "runs here") | missing | {
        "cudnn": "the frontend is not installed"
    }


def test_a_bare_command_shows_help(tvae: Tvae) -> None:
    for arguments in ([], ["preset"]):
        result = tvae(*arguments)
        assert result.exit_code == 0
        assert "Usage:" in result.stdout
