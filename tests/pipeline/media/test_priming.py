"""What sound encoders put before the first sample: through the latents' folder and straight through, by PyAV alone."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from carried import carried_over

FRAMES, RATE = 25, 25
Carry = Callable[[Path, str], tuple[Path, list[str]]]


def clip(path: Path, codec: str, rate: int = 48000, layout: str = "stereo", muxer: str | None = None) -> Path:
    with av.open(str(path), "w", format=muxer) as output:
        picture = output.add_stream("mpeg4", rate=RATE, width=64, height=48)
        picture.pix_fmt = "yuv420p"
        sound = output.add_stream(codec, rate=rate, layout=layout, options={"strict": "-2"})
        packets = []
        for _ in range(FRAMES):
            packets += picture.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 90, np.uint8), format="rgb24"))
        packets += picture.encode(None)
        context = sound.codec_context
        context.open(strict=False)
        channels = context.layout.nb_channels
        waves = np.random.default_rng(0).integers(-9000, 9000, (1, rate * channels), np.int16)
        samples = av.AudioFrame.from_ndarray(waves, format="s16", layout=layout)
        samples.sample_rate, samples.pts, samples.time_base = rate, 0, Fraction(1, rate)
        resampler = av.AudioResampler(context.format, layout, rate, context.frame_size or 1024)
        for piece in [*resampler.resample(samples), *resampler.resample(None)]:
            packets += sound.encode(piece)
        packets += sound.encode(None)
        output.mux(sorted(packets, key=lambda packet: (packet.dts or 0) * packet.time_base))
    return path


def starts(path: Path) -> tuple[float, float, int]:
    """Seconds of the first picture and of the first sound that is heard; how many samples are."""
    with av.open(str(path)) as container:
        shown = next(container.decode(video=0))
    with av.open(str(path)) as container:
        heard = list(container.decode(audio=0))
    begin = [float(frame.pts * frame.time_base) for frame in (shown, heard[0])]
    return begin[0], begin[1], sum(frame.samples for frame in heard)


@pytest.fixture(params=["straight", "latents"])
def carried(request: pytest.FixtureRequest, tmp_path: Path) -> Carry:
    """The clip again with its sound, from the source or from what lies beside its latents, and the warnings."""

    def carry(source: Path, suffix: str) -> tuple[Path, list[str]]:
        target = tmp_path / f"b{suffix}"
        return target, carried_over(source, target, None if request.param == "straight" else tmp_path / "streams")

    return carry


@pytest.mark.parametrize("codec", ["aac", "libmp3lame", "mp2", "ac3", "libopus", "vorbis", "flac"])
def test_matroska_keeps_what_is_not_heard(codec: str, carried: Carry, tmp_path: Path) -> None:
    source = clip(tmp_path / "a.mkv", codec)
    target, told = carried(source, ".mkv")
    assert starts(target) == starts(source)
    assert told == []


@pytest.mark.parametrize(("codec", "rate"), [("aac", 48000), ("aac", 7350), ("libmp3lame", 22050)])
def test_what_moves_is_told(codec: str, rate: int, carried: Carry, tmp_path: Path) -> None:
    """Matroska does not learn from MP4 what is not heard: it is, and everything comes later by it."""
    source = clip(tmp_path / "a.mp4", codec, rate, "mono")
    target, told = carried(source, ".mkv")
    shown, heard, _ = starts(target)
    assert heard == 0
    assert shown > 0.02
    assert [line for line in told if "moved" in line] == [
        f"sound begins before zero, where matroska has nothing; all of it was moved by {shown:.3g} s; write .mp4 to "
        "keep the times"
    ]
    target, told = carried(source, ".mp4")
    assert starts(target)[:2] == starts(source)[:2]
    assert told == []


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm"])
def test_sound_of_old_cameras_goes_into_mov(suffix: str, carried: Carry, tmp_path: Path) -> None:
    source = clip(tmp_path / "a.mov", "nellymoser", 22050, "mono")
    name = {".mkv": "matroska"}.get(suffix, suffix[1:])
    _, told = carried(source, suffix)
    assert f"stream 1 (audio, nellymoser) left out: {name} files cannot hold it; write .mov to keep it" in told
    target, told = carried(source, ".mov")
    assert starts(target) == starts(source)
    assert told == []
