"""Jobs of other kinds on a GPU: caches for trainers, clips that are interrupted, and devices that share a folder.

The oracle is the model's own call in float64, or the same job undisturbed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from clips import write_clip
from PIL import Image
from resumed import contents, went_on
from safetensors.torch import load_file
from tiny_vaes import relative_l2

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.jobs import Event, ItemFailed, Job, Progress, checkpoint, run_job
from tvae.pipeline.media import open_reader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
BOUNDS: dict[str, dict[str, Any]] = {"free": {}, "named": {"vram": "4GiB"}, "one at a time": {"batch": 1}}


def work(operation: Any, source: Path, told: list[Event] | None = None, **options: Any) -> int:
    """How many items are done; none fails."""
    events: list[Event] = [] if told is None else told
    options = {"dtype": "float32", **({} if "devices" in options else {"device": "cuda"}), **options}
    done = run_job(Job(operation, (str(source),), **options), events.append)
    assert not [event for event in events if isinstance(event, ItemFailed)]
    return done.done


@pytest.mark.parametrize("bound", BOUNDS)
def test_photos_for_kohya(bound: str, tmp_path: Path) -> None:
    """Each and its mirror image, of three sizes."""
    model, rng = saved("sdxl", tmp_path / "vae"), np.random.default_rng(0)
    photos, sizes = tmp_path / "photos", [(64, 64), (64, 64), (64, 128), (128, 64), (64, 64)]
    photos.mkdir()
    shown = [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for width, height in sizes]
    for number, rgb in enumerate(shown):
        Image.fromarray(rgb).save(photos / f"{number}.png")
    request = CacheRequest("kohya", "sdxl", Buckets(True), posterior="mean", flip=True)
    options = {"vae": str(model.folder), "cache": request, "size": (64, 64), **BOUNDS[bound]}
    assert work("cache", photos, output=str(photos), **options) == len(sizes)
    own = 0
    for number, rgb in enumerate(shown):
        (path,) = photos.glob(f"{number}_*.npz")
        with np.load(path) as file:
            names = sorted(name for name in file.files if name.startswith("latents"))
            plain, flipped = (torch.from_numpy(file[name].astype(np.float64)) for name in names[:2])
            width, height = (int(n) for n in np.asarray(file[next(n for n in file.files if "original" in n)])[:2])
        assert (width, height) == sizes[number]
        if plain.shape[-2:] != (height // 8, width // 8):
            continue  # brought into a bucket of another size
        own += 1
        pixels = torch.from_numpy(rgb).permute(2, 0, 1).unsqueeze(0)
        assert relative_l2(plain, reference(model, pixels)[0][0]) < 1e-5
        assert relative_l2(flipped, reference(model, pixels.flip(3))[0][0]) < 1e-5
    assert own >= 3


@pytest.mark.parametrize("bound", BOUNDS)
def test_clips_for_musubi(bound: str, tmp_path: Path) -> None:
    """Two clips in pieces of nine frames."""
    model = saved("wan", tmp_path / "vae")
    clips = tmp_path / "clips"
    clips.mkdir()
    for name in ("a", "b"):
        write_clip(clips / f"{name}.mkv", 20, sound=False, side=64)
    request = CacheRequest("musubi", "wan", posterior="mean", frames=(9,), stride=(9,))
    options = {"vae": str(model.folder), "cache": request, "size": (64, 64), **BOUNDS[bound]}
    assert work("cache", clips, output=str(tmp_path / "out"), **options) == 2
    made = sorted((tmp_path / "out").rglob("*.safetensors"))
    assert len(made) == 4
    for path in made:
        clip, first = path.name[0], int(path.name.split("_")[1].split("-")[0])
        with open_reader(clips / f"{clip}.mkv") as reader:
            levels = torch.stack([torch.from_numpy(frame.rgb.copy()).permute(2, 0, 1) for frame in reader])
        pixels = levels[first : first + 9].transpose(0, 1).unsqueeze(0)
        (found,) = load_file(path).values()  # stored as bfloat16
        mean = torch.tensor(model.config.latents_mean).view(-1, 1, 1, 1)
        spread = torch.tensor(model.config.latents_std).view(-1, 1, 1, 1)
        wanted = (reference(model, pixels)[0][0] - mean) / spread
        assert relative_l2(found.reshape(wanted.shape), wanted) < 4e-3


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("name", ["sdxl", "wan"])
@pytest.mark.parametrize("operation", ["encode", "decode"])
def test_a_clip_that_is_interrupted_goes_on(
    operation: str, name: str, bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHARE", 1e9)  # one after every part
    model, frames = saved(name, tmp_path / "vae"), 400
    options: dict[str, Any] = {"vae": str(model.folder), **BOUNDS[bound]}
    source = tmp_path / "c.mkv"
    write_clip(source, frames, sound=False, side=64)
    if operation == "decode":
        work("encode", source, output=str(tmp_path / "latents"), **options)
        (source,) = (tmp_path / "latents").iterdir()
        options["crf"] = 0
    whole, out = tmp_path / "whole", tmp_path / "out"
    work(operation, source, output=str(whole), **options)

    def stop(event: Event) -> None:
        if isinstance(event, Progress) and event.done >= 3 * frames // 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(Job(operation, (str(source),), output=str(out), device="cuda", dtype="float32", **options), stop)
    assert not [path for path in out.glob("*") if path.suffix == ".mp4"]
    events: list[Event] = []
    assert work(operation, source, events, output=str(out), **options) == 1
    assert went_on(events)
    (one,), (other,) = whole.iterdir(), out.iterdir()
    assert one.name == other.name
    if operation == "encode":
        first, second = contents(one), contents(other)
        assert first.keys() == second.keys()
        assert all(relative_l2(second[key].double(), first[key].double()) < 1e-5 for key in first)
        return
    with open_reader(one) as first_film, open_reader(other) as second_film:
        pairs = [(a.rgb.astype(int), b.rgb.astype(int)) for a, b in zip(first_film, second_film, strict=True)]
    assert len(pairs) == frames
    assert max(int(np.abs(a - b).max()) for a, b in pairs) <= 4  # a level in x264's colours may be some here


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("operation", ["encode", "decode", "roundtrip", "cache"])
def test_two_gpus_share_a_folder(operation: str, tmp_path: Path) -> None:
    """To the numbers of one."""
    model, rng, photos = saved("sdxl", tmp_path / "vae"), np.random.default_rng(1), tmp_path / "photos"
    photos.mkdir()
    for number in range(40):
        width, height = ((64, 64), (96, 64))[number % 3 == 0]
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(photos / f"{number:02d}.png")
    options: dict[str, Any] = {"vae": str(model.folder)}
    source = photos
    if operation == "decode":
        source = tmp_path / "latents"
        work("encode", photos, output=str(source), **options)
    if operation == "cache":
        options |= {"cache": CacheRequest("kohya", "sdxl", Buckets(True), posterior="mean"), "size": (64, 64)}
    for devices in ("1", "2"):
        alone: dict[str, Any] = {"devices": devices} if devices == "2" else {}
        assert work(operation, source, output=str(tmp_path / devices), **alone, **options) == 40
    names = sorted(path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file())
    assert len(names) >= 40
    for name in names:
        one, two = tmp_path / "1" / name, tmp_path / "2" / name
        if name.suffix == ".safetensors":
            first, second = load_file(one), load_file(two)
            assert all(relative_l2(second[key].double(), first[key].double()) < 1e-5 for key in first)
        elif name.suffix == ".npz":
            with np.load(one) as a, np.load(two) as b:
                assert all(np.allclose(a[key], b[key], rtol=1e-4, atol=1e-4) for key in a.files)
        elif name.suffix == ".png":
            assert np.abs(np.array(Image.open(one)).astype(int) - np.array(Image.open(two))).max() <= 1
