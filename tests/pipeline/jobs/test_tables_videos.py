"""Caches of data sets with videos: the trainer's clips, what is left out, damage, changes, interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from data_sets import CLIPS, damaged_video, made_with_videos, video
from PIL import Image, ImageOps
from stand_in_tables import records, stood_in
from tiny_vaes import relative_l2

from tvae.pipeline.batch.verdicts import verdicts
from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemFailed, ItemSkipped, Job, Progress, RunDone, run_job

HOME = Path("mixed/cache/wan")
LONG = HOME / "cache_1.000x64x64x17" / "latents"
ONE = "resolutions = [64]\nframe_buckets = [5, 9, 17]\n"


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    stood_in(monkeypatch)
    return saved("wan", Path("vae"))


def run(arch: str = "wan", **fields: Any) -> tuple[RunDone, list[Event]]:
    events: list[Event] = []
    asked = {name: fields.pop(name) for name in ("video_clip_mode", "shards") if name in fields}
    request = CacheRequest("diffusion-pipe", arch, **asked)
    fields = {"vae": "vae", "dtype": "float32", **fields}
    return run_job(Job("cache", ("dataset.toml",), cache=request, **fields), events.append), events


def counts(done: RunDone) -> tuple[int, int, int]:
    return done.done, done.skipped, done.failed


def latents(root: Path) -> dict[str, torch.Tensor]:
    return {Path(one["image_spec"][1]).name: one["latents"] for one in records(root)}


def wanted(model: Any, name: str, numbers: list[int], size: tuple[int, int]) -> torch.Tensor:
    """Latents of these frames in the model's space: through floats of which the fraction of a byte is cut, and
    Pillow's ``fit``. The videos' widths need no padding."""
    with av.open(f"mixed/{name}") as container:
        found = [frame.to_ndarray(format="gbrpf32le") for frame in container.decode(video=0)]
    fitted = [ImageOps.fit(Image.fromarray((found[n] * 255).astype(np.uint8)), size) for n in numbers]
    pixels = torch.from_numpy(np.stack([np.array(one) for one in fitted])).permute(3, 0, 1, 2).unsqueeze(0)
    mean = reference(model, pixels)[0][0]
    shift, scale = (torch.tensor(model.config[f"latents_{one}"]).view(-1, 1, 1, 1) for one in ("mean", "std"))
    return (mean - shift) / scale


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, pytest.param("single_middle", marks=pytest.mark.slow)])
def test_clips_are_those_of_the_trainer(model: Any, mode: str | None) -> None:
    made_with_videos(CLIPS)
    done, events = run(video_clip_mode=mode)
    assert counts(done) == (12, 1, 0)
    told = [one.reason for one in events if isinstance(one, ItemSkipped)]
    assert told == [
        "diffusion-pipe leaves it out: it has 3 frames at the model's rate, too few for all frame_buckets of videos"
    ]
    lengths = {"same.mp4": 17, "fast.mp4": 17, "slow.mp4": 9}
    for name, length in lengths.items():  # in the wan model's steps of one frame, then of four
        steps = [(one.done, one.total) for one in events if isinstance(one, Progress) and one.input.name == name]
        once = [(n, length) for n in range(1, length + 1, 4)]
        assert steps[: len(once)] == once
    same, fast = [*range(17)], [0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31]
    if mode is not None:
        same, fast = [*range(1, 18)], [3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35]
    assert [*latents(LONG)] == ["same.mp4"]
    assert latents(LONG)["same.mp4"].shape == (16, 5, 8, 8)
    assert relative_l2(latents(LONG)["same.mp4"], wanted(model, "same.mp4", same, (64, 64))) < 1e-5
    found = latents(HOME / "cache_1.414x80x48x17" / "latents")
    assert relative_l2(found["fast.mp4"], wanted(model, "fast.mp4", fast, (80, 48))) < 1e-5
    slow = latents(HOME / "cache_0.707x48x80x9" / "latents")["slow.mp4"]
    assert relative_l2(slow, wanted(model, "slow.mp4", [0, 0, 0, 1, 1, 2, 2, 3, 3], (48, 80))) < 1e-5
    assert relative_l2(slow, wanted(model, "slow.mp4", [0, 0, 0, 1, 1, 2, 2, 3, 4], (48, 80))) > 1e-4


@pytest.mark.long
def test_images_and_what_one_frame_is_left_of_share_a_bucket(model: Any) -> None:
    made_with_videos(ONE)
    run()
    found = latents(HOME / "cache_1.000x64x64x1" / "latents")
    assert sorted(found) == ["one.mp4", "still.png"]
    assert relative_l2(found["one.mp4"], wanted(model, "one.mp4", [0], (64, 64))) < 1e-5
    assert {tuple(one.shape) for one in found.values()} == {(16, 1, 8, 8)}


def test_a_dry_run_changes_nothing() -> None:
    made_with_videos(ONE)
    done, _ = run(dry_run=True)
    assert (done.planned, done.skipped, done.failed, HOME.exists()) == (6, 1, 0, False)


@pytest.mark.long
def test_records_say_what_the_trainers_do() -> None:
    made_with_videos(ONE)
    run()
    (one, *_) = records(LONG)
    assert [*one] == ["latents", "image_spec", "mask", "caption"]
    name = Path(one["image_spec"][1]).name
    assert (one["image_spec"][0], one["mask"], one["caption"]) == (None, None, [f"a caption of {name}"])
    assert {one.state for one in verdicts(HOME, sources=Path("mixed"))} == {"fine"}


@pytest.mark.long
def test_a_run_that_changes_nothing_reads_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    made_with_videos(ONE)
    first, _ = run()
    monkeypatch.setattr("tvae.pipeline.jobs.tables.clip.frames_at", None)
    again, _ = run()
    assert (again.done, again.skipped) == (0, first.done + 1)
    assert counts(run(dry_run=True)[0]) == (0, first.done + 1, 0)


@pytest.mark.long
def test_a_changed_video_is_computed_again() -> None:
    made_with_videos(ONE)
    run()
    before = latents(LONG)
    video(Path("mixed/same.mp4"), (64, 64), 20, "16", 77)
    assert counts(run()[0])[0] == 1
    after = latents(LONG)
    assert relative_l2(before["same.mp4"], after["same.mp4"]) > 1e-3
    assert all(torch.equal(after[name], before[name]) for name in before if name != "same.mp4")


@pytest.mark.long
def test_a_damaged_video_costs_itself() -> None:
    """The trainer passes over the packet, and stops where frames are missing then."""
    made_with_videos(ONE)
    damaged_video(Path("mixed/bad.mkv"), 14, 7)
    Path("mixed/bad.txt").write_text("a caption")
    done, events = run()
    assert done.failed == 1
    (told,) = (one for one in events if isinstance(one, ItemFailed))
    assert "bad.mkv" in str(told.input)
    assert "the video breaks after frame 7" in told.error
    assert "\n" not in told.error
    assert not (HOME / "cache_1.000x64x64x9" / "latents" / "metadata.db").exists()
    assert (LONG / "metadata.db").exists()
    damaged_video(Path("mixed/bad.mkv"), 14, 20)
    assert counts(run()[0])[::2] == (1, 0)
    assert (HOME / "cache_1.000x64x64x9" / "latents" / "metadata.db").exists()


@pytest.mark.long
def test_a_header_that_promises_more_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after the frames that are there; what says their number stands before them."""
    made_with_videos(ONE)
    with av.open("mixed/fast.mp4", "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(40):
            noise = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode())
    whole = Path("mixed/fast.mp4").read_bytes()
    Path("mixed/fast.mp4").write_bytes(whole[: len(whole) // 3])
    _, events = run()
    (told,) = (one for one in events if isinstance(one, ItemFailed))
    assert told.input.name == "fast.mp4"
    assert "\n" not in told.error


@pytest.mark.long
def test_videos_that_are_done_stay_after_a_kill() -> None:
    made_with_videos(ONE)
    for number in range(4):
        video(Path(f"mixed/more{number}.mp4"), (64, 64), 18, "16", number)
        Path(f"mixed/more{number}.txt").write_text("a caption")
    ended = 0

    def dies(event: Event) -> None:
        nonlocal ended
        ended += event.type == "item_done" and "x17" in str(getattr(event, "output", ""))
        if ended == 3:
            raise KeyboardInterrupt

    request = CacheRequest("diffusion-pipe", "wan", shards="30KB")
    with pytest.raises(KeyboardInterrupt):
        run_job(Job("cache", ("dataset.toml",), cache=request, vae="vae", dtype="float32"), dies)
    assert not (LONG / "metadata.db").exists()
    done, _ = run(shards="30KB")
    assert done.failed == 0
    assert done.skipped > 1
    assert len(latents(LONG)) == 6


@pytest.mark.long
def test_a_clip_mode_belongs_to_the_buckets_of_videos() -> None:
    made_with_videos(ONE)
    run(video_clip_mode="single_beginning")
    assert counts(run()[0])[0] == 0
    with pytest.raises(UsageError, match="other options; pass --overwrite"):
        run(video_clip_mode="single_middle")
    for path in Path("mixed").glob("*.m*"):
        path.unlink()
    assert counts(run(video_clip_mode="single_middle")[0])[2] == 0


def test_models_of_images_leave_videos_out() -> None:
    made_with_videos(ONE)
    done, events = run("qwen_image")
    assert counts(done) == (1, 6, 0)
    told = {one.reason for one in events if isinstance(one, ItemSkipped)}
    assert told == {"diffusion-pipe leaves it out: it is a video, and the model is trained on images alone"}
