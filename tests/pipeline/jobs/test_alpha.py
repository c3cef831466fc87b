"""The alpha of pictures on their way: kept beside latents, written back, or dropped; colours are what they are without.

The oracle for alpha is the array that the test drew; for scaled alpha Pillow's Lanczos of it alone, as of any grey
picture. Colours are compared with those of the same picture without alpha.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from tvae.pipeline import load_latents, save_latents
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import ItemSkipped, Job, Notice
from tvae.pipeline.jobs.convert import convert
from tvae.pipeline.jobs.vaes import Vaes

Run = Callable[..., Any]
WIDE, HIGH = 37, 21


@pytest.fixture
def drawn() -> np.ndarray:
    """[H, W, 4]: what does not show has colours, too."""
    levels = np.random.default_rng(0).integers(0, 256, (HIGH, WIDE, 4), np.uint8)
    levels[:5, :7, 3] = 0
    return levels


@pytest.fixture
def cut(tmp_path: Path, drawn: np.ndarray) -> Path:
    path = tmp_path / "cut.png"
    Image.fromarray(drawn).save(path)
    return path


@pytest.fixture
def plain(tmp_path: Path, drawn: np.ndarray) -> Path:
    path = tmp_path / "plain.png"
    Image.fromarray(np.ascontiguousarray(drawn[..., :3])).save(path)
    return path


def levels_of(path: Path, mode: str) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == mode
        return np.asarray(image)


def notices(events: list[Any]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice)]


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif"])
def test_there_and_back(run: Run, cut: Path, plain: Path, drawn: np.ndarray, tmp_path: Path, suffix: str) -> None:
    run("encode", cut, plain, output=tmp_path / "lat")
    pair = [load_file(tmp_path / "lat" / f"{path.name}.safetensors")["latents"] for path in (cut, plain)]
    assert torch.equal(*pair)
    outputs, lossless = [], (("lossless", "1"),) if suffix == ".webp" else ()
    for name in ("cut", "plain"):
        outputs.append(tmp_path / f"{name}-decoded{suffix}")
        done, events = run(
            "decode", tmp_path / "lat" / f"{name}.png.safetensors", output=outputs[-1], encoder_options=lossless
        )
        assert (done.done, notices(events)) == (1, [])
    found = levels_of(outputs[0], "RGBA")
    assert (found[..., 3] == drawn[..., 3]).all()
    assert (found[..., :3] == levels_of(outputs[1], "RGB")).all()


def test_roundtrip_has_it(run: Run, cut: Path, plain: Path, drawn: np.ndarray, tmp_path: Path) -> None:
    ended = {}
    for path in (cut, plain):
        done, events = run("roundtrip", path, output=tmp_path / "out")
        assert done.done == 1
        ended[path.name] = next(event.quality for event in events if getattr(event, "quality", None))
    assert ended["cut.png"] == ended["plain.png"]
    found = levels_of(tmp_path / "out" / "cut.png", "RGBA")
    assert (found[..., 3] == drawn[..., 3]).all()
    assert (found[..., :3] == levels_of(tmp_path / "out" / "plain.png", "RGB")).all()


def test_it_is_scaled_and_cut_as_the_picture_is(
    run: Run, cut: Path, plain: Path, drawn: np.ndarray, tmp_path: Path
) -> None:
    how = {"size": (16, 8), "fit": "cover", "output": tmp_path / "lat"}
    run("encode", cut, plain, **how)
    pair = [load_file(tmp_path / "lat" / f"{path.name}.safetensors")["latents"] for path in (cut, plain)]
    assert torch.equal(*pair)
    run("decode", tmp_path / "lat" / "cut.png.safetensors", output=tmp_path / "out")
    alpha = Image.fromarray(np.ascontiguousarray(drawn[..., 3])).resize((16, 9), Image.Resampling.LANCZOS)
    assert (levels_of(tmp_path / "out" / "cut.png", "RGBA")[..., 3] == np.asarray(alpha)[:8]).all()


@pytest.mark.parametrize("operation", ["decode", "roundtrip"])
@pytest.mark.parametrize("suffix", [".jpg", ".bmp"])
def test_a_format_without_it_is_told(run: Run, cut: Path, tmp_path: Path, operation: str, suffix: str) -> None:
    source = cut
    if operation == "decode":
        run("encode", cut, output=tmp_path / "lat")
        source = tmp_path / "lat" / "cut.png.safetensors"
    done, events = run(operation, source, output=tmp_path / f"x{suffix}")
    assert done.done == 1
    assert f"transparency dropped: {suffix} images have none" in notices(events)
    levels_of(tmp_path / f"x{suffix}", "RGB")


def test_drop(run: Run, cut: Path, tmp_path: Path) -> None:
    """Each is another result: what was made with alpha is made again without it, and is then done."""
    run("encode", cut, output=tmp_path / "lat")
    latents = tmp_path / "lat" / "cut.png.safetensors"
    for operation, source in (("decode", latents), ("roundtrip", cut)):
        for alpha, mode in (("keep", "RGBA"), ("drop", "RGB"), ("keep", "RGBA")):
            done, _ = run(operation, source, output=tmp_path / operation, alpha=alpha)
            assert done.done == 1
            levels_of(tmp_path / operation / "cut.png", mode)
            _, events = run(operation, source, output=tmp_path / operation, alpha=alpha)
            assert [event.reason for event in events if isinstance(event, ItemSkipped)] == ["done already"]
    done, _ = run("encode", cut, output=tmp_path / "lat", alpha="drop")
    assert done.done == 1
    with safe_open(latents, framework="numpy") as file:
        assert "alpha" not in file.metadata()


def test_an_opaque_one_is_as_if_it_had_none(run: Run, cut: Path, drawn: np.ndarray, tmp_path: Path) -> None:
    drawn[..., 3] = 255
    Image.fromarray(drawn).save(cut)
    _, events = run("encode", cut, output=tmp_path / "lat")
    assert not any("transparency" in line for line in notices(events))
    with safe_open(tmp_path / "lat" / "cut.png.safetensors", framework="numpy") as file:
        assert "alpha" not in file.metadata()
    run("roundtrip", cut, output=tmp_path / "out")
    levels_of(tmp_path / "out" / "cut.png", "RGB")


@pytest.mark.parametrize("mode", ["LA", "P", "tRNS"])
def test_other_kinds_of_transparency(run: Run, drawn: np.ndarray, tmp_path: Path, mode: str) -> None:
    path, alpha = tmp_path / "a.png", drawn[..., 3]
    if mode == "LA":
        Image.fromarray(np.ascontiguousarray(drawn[..., [0, 3]]), "LA").save(path)
    else:
        grey = Image.fromarray(np.ascontiguousarray(drawn[..., 0])).convert("P" if mode == "P" else "L")
        grey.save(path, transparency=7)
        alpha = np.where(np.asarray(grey) == 7, 0, 255)
        assert (alpha == 0).any()
    run("roundtrip", path, output=tmp_path / "out")
    assert (levels_of(tmp_path / "out" / "a.png", "RGBA")[..., 3] == alpha).all()


def test_one_that_is_too_large_is_told(run: Run, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvae.pipeline.latents.alpha.MOST_TEXT", 100)
    done, events = run("encode", cut, output=tmp_path / "lat")
    assert done.done == 1
    assert "transparency dropped: it is too large to be kept beside latents" in notices(events)
    with safe_open(tmp_path / "lat" / "cut.png.safetensors", framework="numpy") as file:
        assert "alpha" not in file.metadata()


def test_a_word_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="alpha 'no' is not one of keep, drop"):
        Job("decode", ("a",), alpha="no")  # type: ignore[arg-type]


def test_scripts_and_other_forms_keep_it(run: Run, cut: Path, drawn: np.ndarray, tmp_path: Path) -> None:
    run("encode", cut, output=tmp_path / "lat")
    source, other = tmp_path / "lat" / "cut.png.safetensors", tmp_path / "other.safetensors"
    job = Job("decode", (str(source),))
    assert convert(source, other, job, Vaes(job), "model") == []
    loaded = load_latents(other)
    assert loaded.alpha is not None
    assert (loaded.alpha == drawn[..., 3]).all()
    (told,) = convert(source, tmp_path / "a.npz", job, Vaes(job), None)
    assert "not the picture's alpha" in told
    turned = 255 - drawn[..., 3]
    save_latents(other, replace(loaded, alpha=turned), overwrite=True)
    run("decode", other, output=tmp_path / "out")
    assert (levels_of(tmp_path / "out" / "cut.png", "RGBA")[..., 3] == turned).all()
    for wrong in (turned.T, turned.astype("float32")):
        with pytest.raises(UsageError, match=r"alpha is uint8 \[21, 37\]"):
            save_latents(other, replace(loaded, alpha=wrong), overwrite=True)
