"""Pictures of formats that do not tell when they are shown come at their rate, in step with the sound."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.media import open_reader
from tvae.pipeline.media.frame_clock import FirstPackets, FrameClock

RATE, FRAMES, FLASH, SAMPLES = 25, 20, 10, 48000
REORDERED = {"preset": "medium", "bf": "3", "b_strategy": "0", "b-pyramid": "normal"}
CODECS = {
    "h264": ("libx264", {"bf": "0"}),
    "h264, B pictures": ("libx264", REORDERED),
    "h264, B pictures that none refers to": ("libx264", REORDERED | {"b-pyramid": "none"}),
    "mpeg4": ("mpeg4", {}),
    "mpeg4, B pictures": ("mpeg4", {"bf": "2"}),
    "mpeg2, B pictures": ("mpeg2video", {"bf": "2"}),
}


def clip(path: Path, codec: str, sound: str, pts: range | list[int]) -> Path:
    """Dark but for the picture number FLASH, when the silence ends. Nothing but FFmpeg places it in time."""
    name, options = CODECS[codec]
    with av.open(str(path), "w") as output:
        picture = output.add_stream(name, rate=RATE, width=64, height=48, options=options)
        picture.pix_fmt, picture.codec_context.bit_rate = "yuv420p", 4_000_000
        picture.time_base = picture.codec_context.time_base = Fraction(1, RATE)
        heard = output.add_stream(sound, rate=SAMPLES, layout="stereo")
        packets = []
        for number, time in enumerate(pts):
            level = np.full((48, 64, 3), 235 if number == FLASH else 16, np.uint8)
            frame = av.VideoFrame.from_ndarray(level, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, RATE)
            packets += picture.encode(frame)
        packets += picture.encode(None)
        wave = np.zeros((1, 2 * SAMPLES * FRAMES // RATE), np.int16)
        wave[:, 2 * SAMPLES * FLASH // RATE :] = 20_000
        size = 1152
        for start in range(0, wave.shape[1] // 2 - size, size):
            piece = np.ascontiguousarray(wave[:, 2 * start : 2 * (start + size)])
            samples = av.AudioFrame.from_ndarray(piece, format="s16", layout="stereo")
            samples.sample_rate, samples.pts, samples.time_base = SAMPLES, start, Fraction(1, SAMPLES)
            packets += heard.encode(samples)
        packets += heard.encode(None)
        output.mux(sorted(packets, key=lambda packet: (packet.dts or 0) * packet.time_base))
    return path


def sounds_at(path: Path) -> float:
    """Seconds until something is heard."""
    with av.open(str(path)) as container:
        for samples in container.decode(audio=0):
            loud = np.flatnonzero(np.abs(samples.to_ndarray().reshape(-1)[:: len(samples.layout.channels)]) > 8000)
            if loud.size:
                return float(samples.pts * samples.time_base) + int(loud[0]) / SAMPLES
    raise AssertionError("silent")


IN_MXF = ("h264", "h264, B pictures", "mpeg2, B pictures")


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        *(("avi", codec) for codec in CODECS),
        *(("asf", codec) for codec in CODECS),
        *(("mxf", codec) for codec in IN_MXF),
    ],
)
def test_pictures_are_in_step(suffix: str, codec: str, tmp_path: Path) -> None:
    path = clip(tmp_path / f"a.{suffix}", codec, "pcm_s16le", range(FRAMES))
    with open_reader(path) as reader:
        frames = list(reader)
        unit = reader.info.time_base
    assert unit is not None
    times = [frame.pts * unit for frame in frames if frame.pts is not None]
    assert len(times) == FRAMES
    assert {later - earlier for earlier, later in pairwise(times)} == {Fraction(1, RATE)}
    assert [frame.rgb.mean() > 100 for frame in frames].index(True) == FLASH
    assert float(times[FLASH]) == pytest.approx(sounds_at(path), abs=0.005)
    assert [line for line in reader.warnings if "time" in line] == []


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_pictures_that_avi_leaves_out_keep_their_time(codec: str, tmp_path: Path) -> None:
    pts = [0, 1, 2, 6, 7, 8, 12, 13, 20, 21, 22, 23]
    with open_reader(clip(tmp_path / "a.avi", codec, "pcm_s16le", pts)) as reader:
        assert [frame.pts for frame in reader] == pts


def test_pictures_without_times_follow_at_their_own_length() -> None:
    """Of H.264 in MPEG-PS FFmpeg gives some pictures no time, and takes the distance of the others for the rate."""
    clock = FrameClock(21600, [0], FirstPackets("mpeg"))
    given = [45902, None, None, 56702, None, 63902]
    assert [clock.place(time, time, 3600) for time in given] == [45902 + 3600 * number for number in range(6)]
    assert clock.warnings() == ["3 frames have no timestamp; placed at the nominal frame rate"]


def test_a_clip_shorter_than_the_decoder_waits(tmp_path: Path) -> None:
    with open_reader(clip(tmp_path / "a.avi", "h264, B pictures", "pcm_s16le", range(2))) as reader:
        assert [(frame.pts, frame.duration) for frame in reader] == [(0, 1), (1, 1)]
    assert [line for line in reader.warnings if "time" in line] == []
