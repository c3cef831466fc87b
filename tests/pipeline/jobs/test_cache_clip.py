"""Videos cut into pieces: which frames, the model's own numbers, and runs that go on where others stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from safetensors.torch import load_file
from tiny_vaes import relative_l2

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemSkipped, Job, Progress, run_job


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved("wan", tmp_path_factory.mktemp("wan"))


def film(path: Path, frames: int, rate: int = 24) -> np.ndarray:
    """Writes a clip of 64x48 pixels without loss and returns its frames."""
    rng = np.random.default_rng(frames)
    shown = rng.integers(0, 256, (frames, 48, 64, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=rate, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "rgb24"
        for one in shown:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(one, format="rgb24")))
        container.mux(stream.encode())
    return shown


def cached(model: Any, source: Path, out: Path, existing: Any = "skip", **wanted: Any) -> list[Event]:
    events: list[Event] = []
    request = CacheRequest("musubi", "wan", **wanted)
    job = Job(
        "cache",
        (str(source),),
        output=str(out),
        vae=str(model.folder),
        dtype="float32",
        size=(64, 48),
        cache=request,
        existing=existing,
    )
    run_job(job, events.append)
    return events


def ends(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def latents(path: Path) -> torch.Tensor:
    ((_, value),) = load_file(path).items()
    return value


def own(model: Any, frames: np.ndarray) -> torch.Tensor:
    """The model's own latents of a clip, in its space and as they are stored."""
    mean = reference(model, torch.from_numpy(frames).permute(3, 0, 1, 2).unsqueeze(0))[0]
    shift, scale = (torch.tensor(model.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    return ((mean - shift) / scale)[0].to(torch.bfloat16)


@pytest.mark.long
def test_pieces_have_the_models_own_numbers(wan: Any, tmp_path: Path) -> None:
    shown = film(tmp_path / "a.mkv", 15)
    (done,) = ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(9,), stride=(4,), start=1), ItemDone)
    assert names(tmp_path / "out") == [f"a_{start:05d}-009_0064x0048_wan.safetensors" for start in (1, 5)]
    assert done.output.name == "a_00001-009_0064x0048_wan.safetensors"
    for start in (1, 5):
        ((key, value),) = load_file(tmp_path / "out" / f"a_{start:05d}-009_0064x0048_wan.safetensors").items()
        assert key == "latents_3x6x8_bfloat16"
        clip = torch.from_numpy(shown[start : start + 9]).permute(3, 0, 1, 2).unsqueeze(0)
        mean = reference(wan, clip)[0]
        shift, scale = (torch.tensor(wan.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
        wanted = ((mean - shift) / scale)[0]
        assert relative_l2(value, wanted) < 4e-3  # stored as bfloat16
        assert value.equal(wanted.to(torch.bfloat16)) or relative_l2(value, wanted.to(torch.bfloat16)) < 1e-4


@pytest.mark.long
def test_a_whole_clip_is_cut_to_what_the_vae_takes(wan: Any, tmp_path: Path) -> None:
    film(tmp_path / "a.mkv", 7)
    cached(wan, tmp_path / "a.mkv", tmp_path / "out")
    assert names(tmp_path / "out") == ["a_00000-005_0064x0048_wan.safetensors"]


def test_frames_are_left_out_for_the_rate(wan: Any, tmp_path: Path) -> None:
    shown = film(tmp_path / "a.mkv", 12, rate=24)
    cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(5,), target_fps=12.0)
    (name,) = names(tmp_path / "out")
    ((_, value),) = load_file(tmp_path / "out" / name).items()
    mean = reference(wan, torch.from_numpy(shown[[0, 2, 4, 6, 8]]).permute(3, 0, 1, 2).unsqueeze(0))[0]
    shift, scale = (torch.tensor(wan.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    assert relative_l2(value, ((mean - shift) / scale)[0]) < 4e-3


@pytest.mark.long
def test_a_run_goes_on_with_the_pieces_that_are_missing(
    wan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvae.pipeline.jobs import cache

    film(tmp_path / "a.mkv", 20)
    encode_clip, calls = cache.encode_clip, list[int]()

    def stopped(model: Any, frames: list[np.ndarray], tell: Any) -> Any:
        calls.append(len(frames))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode_clip(model, frames, tell)

    monkeypatch.setattr(cache, "encode_clip", stopped)
    with pytest.raises(KeyboardInterrupt):
        cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(5,), stride=(5,))
    assert len(names(tmp_path / "out")) == 2
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(5,), stride=(5,)), ItemDone)
    assert len(calls) == 3 + 2
    assert len(names(tmp_path / "out")) == 4
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(5,), stride=(5,)), ItemSkipped)
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(9,)), ItemDone)
    assert names(tmp_path / "out") == ["a_00000-009_0064x0048_wan.safetensors"]  # pieces of the older run are gone


@pytest.mark.parametrize("wanted", [{"buckets": Buckets(False)}, {"upscale": False}])
def test_videos_are_always_scaled_to_a_bucket(wan: Any, tmp_path: Path, wanted: dict[str, Any]) -> None:
    film(tmp_path / "a.mkv", 5)
    (failed,) = ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", **wanted), ItemFailed)
    assert "scales every video to its bucket; leave --buckets off and --no-upscale out" in failed.error
    assert not [*tmp_path.glob("out/*.safetensors")]


def test_too_short_a_video_is_an_item_that_failed(wan: Any, tmp_path: Path) -> None:
    film(tmp_path / "a.mkv", 4)
    (failed,) = ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(9,)), ItemFailed)
    assert "no piece to cache" in failed.error
    assert not names(tmp_path / "out")


def test_a_length_that_the_vae_does_not_take_is_refused(wan: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="such as 5 or 9"):
        cached(wan, tmp_path, tmp_path / "out", frames=(8,))


@pytest.mark.long
def test_lengths_and_spread_pieces_stay_together(wan: Any, tmp_path: Path) -> None:
    """Of 15 frames, pieces of 5 begin with the 0th to 10th, of 9 with the 0th to 6th."""
    shown = film(tmp_path / "a.mkv", 15)
    asked = {"frames": (5, 9), "frame_sample": 3}
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", **asked), ItemDone)
    wanted = [f"a_{start:05d}-{frames:03d}" for start, frames in ((0, 5), (0, 9), (3, 9), (5, 5), (6, 9), (10, 5))]
    assert names(tmp_path / "out") == [f"{one}_0064x0048_wan.safetensors" for one in wanted]
    assert latents(tmp_path / "out" / f"{wanted[3]}_0064x0048_wan.safetensors").equal(own(wan, shown[5:10]))
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", **asked), ItemSkipped)
    (tmp_path / "out" / f"{wanted[2]}_0064x0048_wan.safetensors").unlink()
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", **asked), ItemDone)
    assert len(names(tmp_path / "out")) == 6


def test_pieces_are_spread_over_the_frames_that_are_kept(wan: Any, tmp_path: Path) -> None:
    """Every other one of 15 is kept: 8."""
    shown = film(tmp_path / "a.mkv", 15, rate=24)
    cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(5,), frame_sample=2, target_fps=12.0)
    assert names(tmp_path / "out") == [f"a_{start:05d}-005_0064x0048_wan.safetensors" for start in (0, 3)]
    value = latents(tmp_path / "out" / "a_00003-005_0064x0048_wan.safetensors")
    assert value.equal(own(wan, shown[[6, 8, 10, 12, 14]]))


@pytest.mark.long
def test_a_whole_clip_of_at_most_so_many_frames(wan: Any, tmp_path: Path) -> None:
    shown = film(tmp_path / "a.mkv", 15)
    cached(wan, tmp_path / "a.mkv", tmp_path / "out", max_frames=8)
    assert names(tmp_path / "out") == ["a_00000-005_0064x0048_wan.safetensors"]
    assert latents(tmp_path / "out" / "a_00000-005_0064x0048_wan.safetensors").equal(own(wan, shown[:5]))
    assert ends(cached(wan, tmp_path / "a.mkv", tmp_path / "out", max_frames=13), ItemDone)
    assert names(tmp_path / "out") == ["a_00000-013_0064x0048_wan.safetensors"]


def test_records_of_one_length_are_as_before(wan: Any, tmp_path: Path) -> None:
    """Or a cache that stands would be made again."""
    film(tmp_path / "a.mkv", 5)
    cached(wan, tmp_path / "a.mkv", tmp_path / "out", frames=(5,), stride=(4,))
    (record,) = (path for path in tmp_path.glob("out/.*/**/*") if path.is_file())
    options = json.loads(record.read_text())["options"]
    assert options["pieces"] == [5, 4, 0, None]
    assert not {"frame_sample", "max_frames"} & {*options}


def test_a_piece_tells_how_far_it_is(wan: Any, tmp_path: Path) -> None:
    """A single piece may take minutes."""
    film(tmp_path / "in" / "a.mkv", 9)
    told = [event.done for event in ends(cached(wan, tmp_path / "in", tmp_path / "out", frames=(9,)), Progress)]
    assert told == [1, 5, 9]
