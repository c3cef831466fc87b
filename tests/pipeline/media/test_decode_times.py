"""A second stream of pictures whose encoder reorders them comes back with its times, from containers that keep those of
showing alone."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from carried import carried_over

UNIT = Fraction(1, 25)
TIMES = [0, 1, 2, 3, 5, 6, 7, 11, 12]
OPTIONS = {
    "libx264": {"bf": "2", "b_strategy": "0"},
    "mpeg4": {"bf": "2"},
    "mpeg2video": {"bf": "2"},
}


def two_pictures(path: Path, codec: str) -> Path:
    """The second one in this codec, with B-frames."""
    with av.open(str(path), "w") as output:
        streams = [output.add_stream(name, rate=25, options=OPTIONS.get(name)) for name in ("ffv1", codec)]
        packets = []
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
            stream.time_base = stream.codec_context.time_base = UNIT
            for time in TIMES:
                square = np.zeros((32, 48, 3), np.uint8)
                square[8:24, time : time + 16] = 200
                picture = av.VideoFrame.from_ndarray(square, format="rgb24")
                picture.pts, picture.time_base = time, UNIT
                packets += stream.encode(picture)
            packets += stream.encode(None)
        for packet in sorted(packets, key=lambda packet: packet.dts):
            output.mux(packet)
    return path


def second(path: Path) -> list[tuple[Fraction, bytes]]:
    """Of its packets in the order of decoding: when they are shown, after the first picture, and what is in them."""
    starts, found = [], []
    with av.open(str(path)) as container:
        for packet in container.demux():
            if packet.size and packet.stream_index == 0:
                starts.append(packet.pts * packet.time_base)
            elif packet.size:
                found.append((packet.pts * packet.time_base, bytes(packet)))
    return [(time - min(starts), payload) for time, payload in found]


@pytest.mark.parametrize("straight", [True, False])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize("codec", OPTIONS)
def test_a_second_picture_keeps_its_times(codec: str, suffix: str, straight: bool, tmp_path: Path) -> None:
    source = two_pictures(tmp_path / "a.mkv", codec)
    before = second(source)
    assert [time for time, _ in before] != sorted(time for time, _ in before)
    target = tmp_path / f"b{suffix}"
    warnings = carried_over(source, target, None if straight else tmp_path / "streams")
    after = second(target)
    assert [text for text in warnings if "moved" in text] == []
    assert [payload for _, payload in after] == [payload for _, payload in before]
    assert [time for time, _ in after] == pytest.approx([time for time, _ in before], abs=1e-9)
