"""Clips of lengths that a video VAE cannot represent: filled up, cut or refused, in one line, and undone by decode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Notice, Progress
from tvae.pipeline.jobs.lengths import LengthFit, frame_count
from tvae.pipeline.jobs.pictures import Results
from tvae.pipeline.jobs.reading import Chunk
from tvae.pipeline.latents import open_latents

Run = Callable[..., Any]

RULES = [(None, 1, 1), (4, 1, 1), (4, 0, 1), (8, 1, 1), (1, 0, 1), (4, 1, 2)]


def fit(factor: int | None, lead: int, align: Any, group: int = 1) -> LengthFit:
    info: Any = SimpleNamespace(temporal_factor=factor, lead_frames=lead, latent_group=group)
    return LengthFit(info, align)


def through(fit: LengthFit, count: int) -> tuple[list[int], list[int | None]]:
    """Levels and times of the frames that come out."""
    single = [Chunk([np.full((1, 1, 3), n, np.uint8)], [10 * n], [10]) for n in range(count)]
    out = list(fit.through(single))
    assert all(len(chunk.frames) == 1 for chunk in out)
    return [int(chunk.frames[0][0, 0, 0]) for chunk in out], [pts for chunk in out for pts in chunk.pts]


def lines(events: list[Event]) -> list[str]:
    """What was said of lengths."""
    return [event.message for event in events if isinstance(event, Notice) and "multiple of" in event.message]


def fits(count: int, factor: int | None, lead: int, group: int) -> bool:
    if factor is None:
        return True
    groups = [lead + k * factor * group for k in range(99)] + [k * factor * group for k in range(99) if group > 1]
    return count in groups


@pytest.mark.parametrize(("factor", "lead", "group"), RULES)
@pytest.mark.parametrize("count", range(1, 19))
def test_every_length(count: int, factor: int | None, lead: int, group: int) -> None:
    """Against a search over all lengths. CogVideoX has groups of two: 1, 8, 9, 16, 17, … frames."""
    longer = next(n for n in range(count, 99) if fits(n, factor, lead, group))
    padded = fit(factor, lead, "pad", group)
    assert padded.fitted(count) == longer
    assert through(padded, count) == ([*range(count), *[count - 1] * (longer - count)], [10 * n for n in range(count)])
    assert (padded.frames, padded.repeated, padded.dropped) == (count, longer - count, 0)
    shorter = next((n for n in range(count, 0, -1) if fits(n, factor, lead, group)), 0)
    cropped = fit(factor, lead, "crop", group)
    assert cropped.fitted(count) == shorter
    if shorter:
        assert through(cropped, count) == ([*range(shorter)], [10 * n for n in range(shorter)])
        assert (cropped.frames, cropped.repeated, cropped.dropped) == (count, 0, count - shorter)
    else:
        with pytest.raises(InputError, match=f"fewer than .*multiple of {factor}.*--align pad"):
            through(cropped, count)
    strict = fit(factor, lead, "error", group)
    if fits(count, factor, lead, group):
        strict.check(count)
        assert len(through(strict, count)[0]) == count
        assert padded.told + cropped.told + strict.told == []
        return
    near = f"{shorter} or {longer}" if shorter else f"{longer}"
    for refused in (lambda: strict.check(count), lambda: through(strict, count)):
        with pytest.raises(InputError, match=rf"{count} frame.*such as {near}; use --align pad") as error:
            refused()
        assert "\n" not in str(error.value)
    told = " ".join(padded.told)
    assert f"{count} frame" in told
    assert "repeated" in told


def test_frames_pass_through_while_the_clip_goes_on() -> None:
    """Only crop holds frames back, and never a whole step of them."""
    taken: list[int] = []

    def endless() -> Any:
        for n in range(1000):
            taken.append(n)
            yield Chunk([np.zeros((1, 1, 3), np.uint8)], [n], [1])

    for align, most in (("pad", 0), ("error", 0), ("crop", 3)):
        taken.clear()
        for given, _ in enumerate(fit(4, 1, align).through(endless())):
            if given == 100:
                break
        assert 101 <= len(taken) <= 101 + most


@pytest.mark.parametrize(("frames", "parts", "copies"), [(63, [61, 2], [0, 2]), (55, [55], [2])])
def test_a_step_that_begins_early_changes_no_part(
    run: Run,
    clip: Run,
    stand_in: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frames: int,
    parts: list[int],
    copies: list[int],
) -> None:
    """A GPU has the last step, for which the clip was filled up, while the latents of the one before come."""
    monkeypatch.setattr(Results, "on_its_way", True)
    source, model = clip("c.mkv", times=tuple(range(0, frames * 40, 40))), stand_in(True, temporal_factor=4)
    run("encode", source, output=tmp_path / "lat", model=model)
    found = [*open_latents(tmp_path / "lat" / "c.mkv.latents")]
    assert [len(part.pts) for part in found] == parts
    assert [part.repeated for part in found] == copies


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(("frames", "align", "kept", "repeated", "dropped"), [
    (6, "pad", 6, 3, 0),
    (6, "crop", 5, 0, 1),
    (8, "crop", 5, 0, 3),
    (2, "crop", 1, 0, 1),
    (9, "error", 9, 0, 0),
    (9, "crop", 9, 0, 0),
    (71, "pad", 71, 2, 0),
    (71, "crop", 69, 0, 2),
])  # fmt: skip
def test_decode_undoes_it(
    run: Run, clip: Run, shown: Run, stand_in: Run, tmp_path: Path, steps: bool, frames: int, align: str, kept: int,
    repeated: int, dropped: int,
) -> None:  # fmt: skip
    """71 frames are more than one part in steps."""
    source = clip("c.mkv", times=tuple(7 + 40 * n + n % 3 for n in range(frames)))
    model = stand_in(steps, temporal_factor=4)
    done, events = run("encode", source, output=tmp_path / "lat", model=model, align=align)
    assert (done.done, done.failed) == (1, 0)
    told = lines(events)
    assert len(told) == bool(repeated or dropped)
    assert all(f"{frames} frames" in line for line in told)
    folder = tmp_path / "lat" / "c.mkv.latents"
    reader = open_latents(folder)
    assert reader.frames == kept
    assert sum(part.repeated for part in reader) == repeated
    assert json.loads((folder / "index.json").read_text())["dropped"] == dropped
    assert (reader.summary()["repeated"], reader.summary()["dropped"]) == (repeated, dropped)
    done, _ = run("decode", folder, output=tmp_path / "out", model=model)
    assert done.done == 1
    times = [time for time, _ in shown(tmp_path / "out" / "c.mkv.mp4")]
    assert times == [time for time, _ in shown(source)][:kept]


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(("align", "kept"), [("pad", 6), ("crop", 5)])
def test_roundtrip(run: Run, clip: Run, shown: Run, stand_in: Run, tmp_path: Path, steps: bool, align: str, kept: int):
    source = clip("c.mkv", times=tuple(range(0, 240, 40)))
    model = stand_in(steps, temporal_factor=4)
    _, events = run("roundtrip", source, output=tmp_path / "out", model=model, align=align)
    (item,) = (event for event in events if isinstance(event, ItemDone))
    assert item.quality.frames == item.frames == kept
    assert [time for time, _ in shown(item.output)] == [time for time, _ in shown(source)][:kept]
    assert len(lines(events)) == 1


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
@pytest.mark.parametrize("suffix", [".mkv", ".mp4"])
def test_refused_lengths_leave_nothing(
    run: Run, clip: Run, stand_in: Run, tmp_path: Path, steps: bool, operation: str, suffix: str
) -> None:
    """MP4 tells how many frames it holds, and then nothing is computed; Matroska does not."""
    source = clip("c.mkv", times=tuple(range(0, 240, 40)))
    if suffix == ".mp4":
        from tvae.pipeline.media import open_reader, open_writer

        with open_reader(source) as read, open_writer(source.with_suffix(".mp4"), read.info.spec) as write:
            for frame in read:
                write.write(frame)
            write.commit()
        source = source.with_suffix(".mp4")
    model = stand_in(steps, temporal_factor=4)
    done, events = run(operation, source, output=tmp_path / "out", model=model, align="error")
    assert (done.done, done.failed) == (0, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert "6 frames, but this VAE takes 1 + a multiple of 4, such as 5 or 9" in failed.error
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
    if suffix == ".mp4":
        assert model.shapes == []
        assert not any(isinstance(event, Progress) for event in events)


def test_an_image_has_a_length_too(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    """One frame, for a VAE that takes multiples of 4."""
    source, model = picture(), stand_in(temporal_factor=4, lead_frames=0)
    for align in ("error", "crop"):
        done, _ = run("encode", source, output=tmp_path / "no", model=model, align=align)
        assert (done.done, done.failed) == (0, 1)
    done, events = run("encode", source, output=tmp_path / "lat", model=model)
    assert done.done == 1
    assert len(lines(events)) == 1
    (part,) = open_latents(tmp_path / "lat" / "a.png.safetensors")
    assert (part.repeated, part.tensors["latents"].shape) == (3, (3, 2, 4))
    run("decode", tmp_path / "lat", output=tmp_path / "out", model=model)
    assert (tmp_path / "out" / "a.png").is_file()


@pytest.mark.parametrize("align", ["pad", "crop", "error"])
def test_an_image_vae_takes_any_length(run: Run, clip: Run, tmp_path: Path, align: str) -> None:
    done, events = run("encode", clip("c.mkv", times=(0, 40, 90)), output=tmp_path / "lat", align=align)
    assert done.done == 1
    assert lines(events) == []
    assert open_latents(tmp_path / "lat" / "c.mkv.latents").frames == 3


@pytest.mark.parametrize(
    ("group", "counts"),
    [
        (1, {(1, True): 1, (2, True): 5, (3, True): 9, (1, False): 4, (2, False): 8}),
        (2, {(1, True): 1, (2, True): 8, (3, True): 9, (2, False): 8}),
    ],
)
def test_frames_of_latents_that_are_decoded_together(group: int, counts: dict[tuple[int, bool], int]) -> None:
    """As Wan's and CogVideoX's decoders give them."""
    info: Any = SimpleNamespace(temporal_factor=4, lead_frames=1, latent_group=group)
    assert {case: frame_count(info, *case) for case in counts} == counts
