"""Caches for trainers, written by whole jobs: the model's own numbers, skipping, stale files, what is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import relative_l2

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.caches.record import read_record, write_record
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, ItemSkipped, Job, run_job

Size = tuple[int, int]


@pytest.fixture(scope="module")
def sdxl(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("sdxl", tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("flux", tmp_path_factory.mktemp("flux"))


def photo(path: Path, width: int = 96, height: int = 64, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return path


def cached(
    model: Any, *inputs: Path, out: Path, trainer: str = "kohya", size: Size | None = (64, 64), **fields: Any
) -> list[Event]:
    names = {"flip", "posterior", "architecture", "upscale", "buckets"}
    wanted = {name: fields.pop(name) for name in [*fields] if name in names}
    wanted.setdefault("buckets", Buckets(True, 32, 128, 32) if trainer == "kohya" else Buckets())
    events: list[Event] = []
    job = Job(
        "cache",
        tuple(map(str, inputs)),
        output=str(out),
        vae=str(model.folder),
        dtype="float32",
        size=size,
        cache=CacheRequest(trainer, **wanted),
        **fields,
    )
    run_job(job, events.append)
    return events


def ends(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def pixels(path: Path, resized: Size, crop: tuple[int, int, int, int]) -> torch.Tensor:
    """[1, 3, H, W] of an image that was shrunk by whole numbers: means of squares, then cut. Halves of four pixels are
    rounded up, as OpenCV has it."""
    rgb = np.asarray(Image.open(path).convert("RGB")).astype(np.float64)
    down, across = rgb.shape[0] // resized[1], rgb.shape[1] // resized[0]
    means = rgb.reshape(resized[1], down, resized[0], across, 3).mean((1, 3))
    small = np.floor(means + 0.5) if down == across == 2 else np.rint(means)
    left, top, width, height = crop
    return torch.from_numpy(small[top : top + height, left : left + width]).permute(2, 0, 1).unsqueeze(0)


def test_the_numbers_are_the_models_own(sdxl: Any, flux: Any, tmp_path: Path) -> None:
    source = photo(tmp_path / "in" / "a.png", 192, 128)  # halved to 96x64, cut to 64x64 or a wider bucket
    for model, name, end in ((sdxl, "sdxl", ""), (flux, "flux", "_8x8")):
        cached(
            model, source, out=tmp_path / name, posterior="mean", architecture=name, buckets=Buckets(False), flip=True
        )
        with np.load(tmp_path / name / f"a_0192x0128_{name}.npz") as file:
            found = {key: torch.from_numpy(file[key]) for key in file.files}
        seen = pixels(source, (96, 64), (16, 0, 64, 64))
        for key, given in ((f"latents{end}", seen), (f"latents_flipped{end}", seen.flip(3))):
            mean = reference(model, given)[0][0]
            wanted = mean if name == "sdxl" else (mean - 0.1159) * 0.3611
            assert relative_l2(found[key], wanted) < 1e-5


@pytest.mark.slow
def test_samples_have_the_posteriors_spread(sdxl: Any, tmp_path: Path) -> None:
    found = []
    for n in range(24):
        source = photo(tmp_path / "in" / f"{n}.png", 64, 64)
        cached(sdxl, source, out=tmp_path / "out")
        with np.load(tmp_path / "out" / f"{n}_0064x0064_sdxl.npz") as file:
            found.append(torch.from_numpy(file["latents"]).double())
    mean, logvar = reference(sdxl, pixels(source, (64, 64), (0, 0, 64, 64)))
    noise = (torch.stack(found) - mean) / (0.5 * logvar).exp()
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1) < 0.05
    assert float((noise[0] - noise[1]).abs().max()) > 0.5  # equal images of two names have noise of their own
    again = cached(sdxl, source, out=tmp_path / "again")
    with np.load(ends(again, ItemDone)[0].output) as file:
        assert (torch.from_numpy(file["latents"]) == found[-1]).all()


def test_musubi_finds_one_plain_tensor(flux: Any, tmp_path: Path) -> None:
    source = photo(tmp_path / "a.png", 192, 128)
    events = cached(flux, source, out=tmp_path / "out", trainer="musubi", buckets=Buckets(False))
    (done,) = ends(events, ItemDone)
    assert done.output == tmp_path / "out" / "a_0192x0128_zi.safetensors"
    ((key, value),) = load_file(done.output).items()
    assert key == "latents_1x8x8_float32"
    assert relative_l2(value, reference(flux, pixels(source, (96, 64), (16, 0, 64, 64)))[0][0]) < 1e-5
    assert {path.name for path in (tmp_path / "out").iterdir()} == {done.output.name, ".tvae-cache"}


@pytest.mark.long
def test_what_is_done_is_skipped_and_what_changed_is_not(sdxl: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    for n in range(3):
        photo(folder / f"{n}.png", seed=n)
    assert len(ends(cached(sdxl, folder, out=out), ItemDone)) == 3
    events = cached(sdxl, folder, out=out)
    skipped = sorted(event.output.name for event in ends(events, ItemSkipped))  # threads look them up, in any order
    assert skipped == [f"{n}_0096x0064_sdxl.npz" for n in range(3)]
    os.utime(folder / "0.png", (1, 1))  # a copy: the same bytes
    photo(folder / "1.png", seed=7)
    photo(folder / "2.png", 128, 64, seed=2)  # its file gets another name, the old one goes
    events = cached(sdxl, folder, out=out)
    assert [event.index for event in ends(events, ItemSkipped)] == [0]
    assert sorted(event.index for event in ends(events, ItemDone)) == [1, 2]
    assert sorted(path.name for path in out.glob("2_*")) == ["2_0128x0064_sdxl.npz"]
    assert len(ends(cached(sdxl, folder, out=out, flip=True), ItemDone)) == 3
    assert len(ends(cached(sdxl, folder, out=out, flip=True, size=(96, 96)), ItemDone)) == 3
    (out / "0_0096x0064_sdxl.npz").unlink()
    events = cached(sdxl, folder, out=out, flip=True, size=(96, 96))
    assert [event.index for event in ends(events, ItemDone)] == [0]


def test_another_vae_makes_it_anew(sdxl: Any, tmp_path: Path) -> None:
    other = saved("sdxl", tmp_path / "vae")
    with torch.no_grad():
        other.quant_conv.bias.add_(1)
    other.save_pretrained(other.folder)
    source = photo(tmp_path / "a.png")
    cached(sdxl, source, out=tmp_path / "out")
    assert ends(cached(other, source, out=tmp_path / "out"), ItemDone)
    assert ends(cached(other, source, out=tmp_path / "out"), ItemSkipped)


def test_a_file_of_somebody_else_is_not_replaced(sdxl: Any, tmp_path: Path) -> None:
    source, mine = photo(tmp_path / "a.png"), tmp_path / "out" / "a_0096x0064_sdxl.npz"
    mine.parent.mkdir()
    mine.write_bytes(b"kohya's own")
    (failed,) = ends(cached(sdxl, source, out=tmp_path / "out"), ItemFailed)
    assert "tvae did not write it" in failed.error
    assert mine.read_bytes() == b"kohya's own"
    assert ends(cached(sdxl, source, out=tmp_path / "out", existing="overwrite"), ItemDone)
    assert mine.read_bytes() != b"kohya's own"


def test_two_names_that_the_trainer_cannot_tell_apart(sdxl: Any, tmp_path: Path) -> None:
    photo(tmp_path / "in" / "a.png")
    photo(tmp_path / "in" / "a.webp", seed=1)
    with pytest.raises(UsageError, match=r"cannot tell .* from .* in nothing but the suffix"):
        cached(sdxl, tmp_path / "in", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    photo(tmp_path / "in" / "sub" / "A.png")
    (tmp_path / "in" / "a.webp").unlink()
    assert len(ends(cached(sdxl, tmp_path / "in", out=tmp_path / "out", recursive=True), ItemDone)) == 2
    assert (tmp_path / "out" / "sub" / "A_0096x0064_sdxl.npz").is_file()


def test_a_dry_run_names_the_files(sdxl: Any, tmp_path: Path) -> None:
    source = photo(tmp_path / "a.png")
    (planned,) = ends(cached(sdxl, source, out=tmp_path / "out", dry_run=True), ItemPlanned)
    assert planned.output == tmp_path / "out" / "a_0096x0064_sdxl.npz"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"trainer": "nobody"}, "no trainer"),
        ({"architecture": "flux"}, "16 channels"),
        ({"trainer": "musubi", "flip": True}, "trains nothing|no mirrored"),
        ({"buckets": Buckets(True, 32, 64, 6)}, "no multiples of 8"),
        ({"size": (66, 64), "buckets": Buckets(False)}, "no multiple of 8"),
    ],
)
def test_refused_before_any_work(sdxl: Any, tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        cached(sdxl, photo(tmp_path / "a.png"), out=tmp_path / "out", **fields)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_turned_photo_is_seen_as_the_trainer_sees_it(sdxl: Any, tmp_path: Path) -> None:
    plain = photo(tmp_path / "plain.png")
    turned = tmp_path / "turned.png"
    image = Image.open(plain)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(turned, exif=exif)
    for one in (plain, turned):
        cached(sdxl, one, out=tmp_path / "out", posterior="mean")
    found = [np.load(tmp_path / "out" / f"{name}_0096x0064_sdxl.npz")["latents"] for name in ("plain", "turned")]
    assert (found[0] == found[1]).all()


def test_a_damaged_record_counts_for_nothing(sdxl: Any, tmp_path: Path) -> None:
    source, out = photo(tmp_path / "a.png"), tmp_path / "out"
    cached(sdxl, source, out=out)
    record = out / ".tvae-cache" / ".kohya-sdxl" / "a.png.json"
    data = json.loads(record.read_text())
    data["files"][0]["file"] = "../../b.npz"
    record.write_text(json.dumps(data))
    (failed,) = ends(cached(sdxl, source, out=out), ItemFailed)
    assert isinstance(failed.cause, InputError)
    assert ends(cached(sdxl, source, out=out, existing="overwrite"), ItemDone)
    shutil.rmtree(out)
    assert ends(cached(sdxl, source, out=out), ItemDone)


def test_a_record_does_not_say_which_of_a_users_files_go(sdxl: Any, tmp_path: Path) -> None:
    """It may have come with others' files. The trainer's own older file goes, as it should."""
    source, out = photo(tmp_path / "a.png"), tmp_path / "out"
    cached(sdxl, source, out=out)
    old, mine = out / "a_0064x0064_sdxl.npz", photo(out / "mine.png")
    shutil.copy(out / "a_0096x0064_sdxl.npz", old)
    elsewhere = tmp_path / "elsewhere" / "b_0064x0064_sdxl.npz"
    elsewhere.parent.mkdir()
    elsewhere.touch()
    (out / "there").symlink_to(elsewhere.parent)
    place = out / ".tvae-cache" / ".kohya-sdxl" / "a.png.json"
    write_record(place, replace(read_record(place), stale=(old.name, mine.name, "there/b_0064x0064_sdxl.npz")))
    photo(source, seed=1)
    assert ends(cached(sdxl, source, out=out), ItemDone)
    assert not old.exists()
    assert mine.exists()
    assert elsewhere.exists()


def test_images_and_videos_have_folders_of_their_own(flux: Any, tmp_path: Path) -> None:
    photo(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.mp4").write_bytes(b"")
    with pytest.raises(UsageError, match="run them apart"):
        cached(flux, tmp_path / "in", out=tmp_path / "out", trainer="musubi")


@pytest.mark.long
def test_a_run_that_was_killed_leaves_nothing_in_the_way(
    sdxl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvae.pipeline.jobs import cache_plan

    source, out = photo(tmp_path / "a.png"), tmp_path / "out"
    for name in ("publish", "write_record"):
        for seed in (0, 1):  # nothing is there; an older file is
            photo(source, seed=seed)
            real = getattr(cache_plan, name)

            def killed(*given: Any, real: Any = real) -> None:
                real(*given)
                raise KeyboardInterrupt

            monkeypatch.setattr(cache_plan, name, killed)
            with pytest.raises(KeyboardInterrupt):
                cached(sdxl, source, out=out)
            monkeypatch.setattr(cache_plan, name, real)
            assert not [path for path in out.iterdir() if path.name.startswith(".tvae-") and path.is_file()]
            cached(sdxl, source, out=out)  # as it should be, whether or not there was something left to do
            assert ends(cached(sdxl, source, out=out), ItemSkipped)
            with np.load(out / "a_0096x0064_sdxl.npz") as found:
                first = found["latents"]
            cached(sdxl, source, out=tmp_path / "fresh", existing="overwrite")
            with np.load(tmp_path / "fresh" / "a_0096x0064_sdxl.npz") as found:
                assert (found["latents"] == first).all()


@pytest.mark.parametrize("trainer", ["kohya", "ai-toolkit"])
def test_a_full_disk_fails_the_item_and_leaves_nothing(
    sdxl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    from tvae.pipeline.jobs import cache_plan

    real, calls = cache_plan.fill, list[Path]()

    def full(temporary: Path, content: Any) -> None:
        calls.append(temporary)
        real(temporary, content)
        if len(calls) == (2 if trainer == "ai-toolkit" else 1):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_plan, "fill", full)
    source, out = photo(tmp_path / "a.png"), tmp_path / "out"
    buckets = Buckets(True, 32, 128, 32) if trainer == "kohya" else Buckets()
    (failed,) = ends(cached(sdxl, source, out=out, trainer=trainer, flip=True, buckets=buckets), ItemFailed)
    assert "No space left" in failed.error
    assert [path for path in out.rglob("*") if path.is_file()] == []


def test_the_mirrored_image_s_file_is_in_the_way(sdxl: Any, tmp_path: Path) -> None:
    source, out = photo(tmp_path / "a.png"), tmp_path / "out"
    wanted: dict[str, Any] = {"trainer": "ai-toolkit", "flip": True, "buckets": Buckets()}
    cached(sdxl, source, out=out, **wanted)
    record = out / ".tvae-cache" / ".ai-toolkit-sdxl" / "a.png.json"
    first, second = (out / file["file"] for file in json.loads(record.read_text())["files"])
    record.unlink()
    first.unlink()
    (failed,) = ends(cached(sdxl, source, out=out, **wanted), ItemFailed)
    assert second.name in failed.error
    assert [path for path in out.rglob("*") if path.is_file()] == [second]
