"""Sound that a film cannot take as it is costs that sound; times that no film can have are told of the input."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from carried import carried_over

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import (
    Frame,
    PictureSpec,
    open_parted_writer,
    open_writer,
)

MakeClip = Callable[..., Path]
Carry = Callable[[Path], tuple[Path, list[str]]]


@pytest.fixture(params=["straight", "latents"])
def carried(request: pytest.FixtureRequest, tmp_path: Path) -> Carry:
    """The clip in MP4, with what it has of other streams, from the source or from beside its latents; the warnings."""

    def carry(source: Path) -> tuple[Path, list[str]]:
        target = tmp_path / "b.mp4"
        return target, carried_over(source, target, None if request.param == "straight" else tmp_path / "streams")

    return carry


def counted(path: Path) -> tuple[int, list[int]]:
    """Pictures, and packets of each sound, by PyAV."""
    with av.open(str(path)) as container:
        kinds = [stream.type for stream in container.streams]
        found = [0] * len(kinds)
        for packet in container.demux():
            found[packet.stream_index] += packet.size > 0
    return found[kinds.index("video")], [count for count, kind in zip(found, kinds, strict=True) if kind == "audio"]


def test_sound_of_a_codec_that_ffmpeg_does_not_know(make_clip: MakeClip, carried: Carry, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.mkv", audio=("libmp3lame", 0))
    data = source.read_bytes()
    assert data.count(b"A_MPEG/L3") == 1
    source.write_bytes(data.replace(b"A_MPEG/L3", b"A_NONE/L3"))
    target, told = carried(source)
    assert counted(target) == (8, [])
    assert [line.partition(" left out")[0] for line in told] == ["stream 1 (audio, unknown)"]


def test_sound_without_a_packet(make_clip: MakeClip, carried: Carry, tmp_path: Path) -> None:
    """Recordings of broadcasts name streams that are silent for now: nothing is known of their samples."""
    source = tmp_path / "b.ts"
    with av.open(str(make_clip(tmp_path / "a.ts", audio=("aac", 0)))) as clip, av.open(str(source), "w") as output:
        copies = {stream.index: output.add_stream_from_template(stream, opaque=True) for stream in clip.streams}
        for packet in clip.demux(video=0):
            if packet.size:
                packet.stream = copies[packet.stream_index]
                output.mux(packet)
    target, told = carried(source)
    assert counted(target) == (8, [])
    assert len([line for line in told if "left out" in line]) == 1


def test_damaged_packets_of_sound_are_left_out(make_clip: MakeClip, carried: Carry, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.ts", audio=("aac", 0))
    _, (whole,) = counted(source)
    data = bytearray(source.read_bytes())
    found = [at for at in range(len(data) - 1) if data[at] == 0xFF and data[at + 1] & 0xF6 == 0xF0]
    for at in found[4:6]:
        data[at + 2] |= 0x3C  # a rate that there is not
    source.write_bytes(data)
    target, told = carried(source)
    pictures, (kept,) = counted(target)
    assert pictures == 8
    assert 0 < kept < whole
    assert [line for line in told if "damaged" in line] == ["stream 1: packets that are damaged were left out"]


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("times", [[(0, 1), (1, 2**40)], [(0, 1), (2**48, 1)], [(-(2**40), 1), (2**48, 1)]])
def test_impossible_times_are_the_inputs_fault(times: list[tuple[int, int]], parted: bool, tmp_path: Path) -> None:
    like, picture = PictureSpec(16, 16, Fraction(1, 90000), Fraction(25)), np.zeros((16, 16, 3), np.uint8)
    with (open_parted_writer if parted else open_writer)(tmp_path / "a.mp4", like) as writer:
        writer.write(Frame(picture, *times[0]))
        with pytest.raises(InputError, match=r"frame 1 cannot be stored .* give --fps"):
            writer.write(Frame(picture, *times[1]))
    assert list(tmp_path.iterdir()) == []
