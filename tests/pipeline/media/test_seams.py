"""Files joined end to end: what the second holds comes after what the first does, sound and picture alike."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from tvae.pipeline.media import open_reader
from tvae.pipeline.media.packet_times import expand
from tvae.pipeline.media.seams import Seams, ShiftedTimes
from tvae.pipeline.media.stream_copy import copy_streams

FRAMES, RATE, TICKS = 45, 30, 90_000
TOLD = "its clock goes back {}, as in files joined end to end; what follows was put after"


def clip(path: Path, form: str, *, sound: bool, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w", format=form) as container:
        stream = container.add_stream("mpeg2video", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        heard = container.add_stream("mp2", rate=48000) if sound else None
        for number in range(FRAMES):
            noise = rng.integers(0, 255, (32, 48, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(noise, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
            if heard is not None:
                wave = rng.integers(-9000, 9000, (1, 2 * 1600), np.int16)
                samples = av.AudioFrame.from_ndarray(wave, format="s16", layout="stereo")
                samples.sample_rate, samples.pts, samples.time_base = 48000, number * 1600, Fraction(1, 48000)
                container.mux(heard.encode(samples))
        container.mux(stream.encode())
        if heard is not None:
            container.mux(heard.encode())
    return path.read_bytes()


def shown(path: Path) -> tuple[list[int], list[str]]:
    with open_reader(path) as reader:
        times = [frame.pts for frame in reader]
        return [time for time in times if time is not None], [w for w in reader.warnings if "clock" in w]


@pytest.mark.parametrize("form", ["mpegts", "mpeg"])
@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_pictures(parts: int, sound: bool, form: str, tmp_path: Path) -> None:
    data = clip(tmp_path / "one", form, sound=sound, seed=0)
    joined = tmp_path / "joined"
    joined.write_bytes(data * parts)
    alone, told = shown(tmp_path / "one")
    assert told == []
    times, told = shown(joined)
    assert told == ([] if parts == 1 else [TOLD.format({2: "once", 3: "2 times"}[parts])])
    count, period = FRAMES - 2, TICKS // RATE  # a decoder may lose pictures around a seam
    assert len(times) >= FRAMES + (parts - 1) * count
    assert times[:count] == alone[:count]
    assert list(np.diff(times[-count:])) == list(np.diff(alone[-count:]))
    assert all(period <= step <= 5 * period for step in np.diff(times))


def test_sound_stays_with_the_picture(tmp_path: Path) -> None:
    data = clip(tmp_path / "one.ts", "mpegts", sound=True, seed=0)
    (tmp_path / "joined.ts").write_bytes(data + data)
    times, _ = shown(tmp_path / "joined.ts")
    kept = copy_streams(tmp_path / "joined.ts", tmp_path / "streams", [])
    assert kept is not None
    (stream,) = kept.streams
    heard = [time.pts * stream.time_base * TICKS for time in expand(stream.times) if time.pts is not None]
    with av.open(str(tmp_path / "one.ts")) as container:
        raw = [packet.pts for packet in container.demux(audio=0) if packet.size]
    assert [time - heard[0] for time in heard[: len(raw)]] == [time - raw[0] for time in raw]
    apart = times[-1] - times[FRAMES - 1]
    assert heard[-1] - heard[len(raw) - 1] == apart
    assert times[FRAMES - 1] < times[FRAMES] < times[FRAMES - 1] + TICKS // 10


def packet(stream: int, dts: int | None, pts: int | None = None, duration: int = 3000) -> Any:
    return SimpleNamespace(stream_index=stream, dts=dts, pts=dts if pts is None else pts, duration=duration)


def test_streams_that_come_to_a_seam_at_other_packets() -> None:
    seams, second = Seams(), 90_000
    for n in range(4):
        assert seams.shift(packet(0, n * second, duration=second)) == 0
    assert seams.shift(packet(1, 0)) == 0
    assert seams.shift(packet(0, second // 2, duration=second)) == 4 * second - second // 2
    assert seams.shift(packet(1, 3 * second)) == 0  # still of the first file
    assert seams.shift(packet(1, 1000)) == seams.of(0)[-1]
    assert seams.shift(packet(1, None)) == seams.of(0)[-1]
    assert seams.of(0) == seams.of(1) == [0, 4 * second - second // 2]
    frames = ShiftedTimes(seams.of(0))
    placed = [frames.place(time) for time in (0, 3 * second, None, second // 2, second)]
    assert placed == [0, 3 * second, None, 4 * second, 4 * second + second // 2]
    assert frames.seams == 1


def test_times_that_go_back_a_little_stay_as_they_are() -> None:
    """Pictures that are stored out of order, and clocks that are a little wrong."""
    seams = Seams()
    assert [seams.shift(packet(0, time)) for time in (0, 90_000, 6_000, 96_000)] == [0, 0, 0, 0]
    frames = ShiftedTimes([0, 7])
    assert [frames.place(time) for time in (90_000, 0, 90_001, 0)] == [90_000, 0, 90_001, 7]
