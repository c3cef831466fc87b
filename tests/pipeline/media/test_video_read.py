from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import Frame, MediaInfo, count_frames, open_reader, probe

MakeClip = Callable[..., Path]


def read(path: Path) -> tuple[list[Frame], MediaInfo, list[str]]:
    with open_reader(path) as reader:
        frames = list(reader)
    return frames, reader.info, reader.warnings


def times(frames: list[Frame]) -> list[tuple[int | None, int | None]]:
    return [(frame.pts, frame.duration) for frame in frames]


@pytest.mark.parametrize("options", [{}, {"preset": "medium", "bf": "3", "g": "30"}])
@pytest.mark.parametrize("time_base", [Fraction(1, 90000), Fraction(1, 12800)])
def test_irregular_times(options: dict[str, str], time_base: Fraction, make_clip: MakeClip, tmp_path: Path) -> None:
    pts = (0, 1001, 2002, 5005, 8008, 13013, 13500, 20000)
    frames, info, warnings = read(make_clip(tmp_path / "a.mp4", pts=pts, time_base=time_base, options=options))
    assert info.time_base == time_base
    assert [frame.pts for frame in frames] == list(pts)
    assert [frame.duration for frame in frames][:-1] == np.diff(pts).tolist()
    assert frames[-1].duration
    assert warnings == []


def test_frames_come_in_the_order_they_are_shown(make_clip: MakeClip, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=25, width=64, height=64, options={"bf": "3", "b_strategy": "0"})
        stream.pix_fmt = "yuv420p"
        for index in range(12):
            grey = np.full((64, 64, 3), 20 * index, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        output.mux(stream.encode(None))
    frames, _, _ = read(path)
    assert [round(float(frame.rgb.mean()) / 20) for frame in frames] == list(range(12))
    assert count_frames(path) == 12


@pytest.mark.parametrize("start", [700, 51200])
@pytest.mark.parametrize("suffix", [".mp4", ".ts"])
def test_a_start_other_than_zero_is_kept(start: int, suffix: str, make_clip: MakeClip, tmp_path: Path) -> None:
    pts = [start + 512 * index for index in range(6)]
    clip = make_clip(
        tmp_path / f"a{suffix}", pts=pts, muxer_options={"movie_timescale": "12800"} if suffix == ".mp4" else {}
    )
    frames, info, _ = read(clip)
    assert info.time_base is not None
    seconds = [float((frame.pts or 0) * info.time_base) for frame in frames]
    lead = 0 if suffix == ".mp4" else seconds[0] - start / 12800  # MPEG-TS starts late, all streams alike
    assert seconds == pytest.approx([value / 12800 + lead for value in pts], abs=1e-4)


def test_frames_without_times_follow_the_nominal_rate(make_clip: MakeClip, tmp_path: Path) -> None:
    frames, info, warnings = read(make_clip(tmp_path / "a.h264", muxer="h264", options={"x264-params": "fps=25"}))
    assert info.time_base is not None
    period = frames[0].duration
    assert times(frames) == [(period * index, period) for index in range(8)]
    assert float(period * info.time_base) == pytest.approx(1 / float(info.frame_rate))
    assert warnings == ["8 frames have no timestamp; placed at the nominal frame rate"]


def test_avi_with_b_frames_still_increases(make_clip: MakeClip, tmp_path: Path) -> None:
    options = {"preset": "medium", "bf": "3", "b_strategy": "0"}
    pts = list(range(12))
    frames, _, _ = read(make_clip(tmp_path / "a.avi", pts=pts, time_base=Fraction(1, 25), options=options))
    got = [frame.pts for frame in frames]
    assert len(got) == 12
    assert got == sorted(set(got))


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "warnings"),
    [
        ("libx264", "yuv444p", []),
        ("libx264", "yuv422p", []),
        ("libx264", "yuv420p10le", ["10-bit values read as 8-bit"]),
        ("ffv1", "yuva420p", ["transparency dropped"]),
        ("ffv1", "bgr0", []),
        ("ffv1", "gbrp16le", ["16-bit values read as 8-bit"]),
    ],
)
def test_pixel_formats(
    codec: str, pix_fmt: str, warnings: list[str], quarters: np.ndarray, make_clip: MakeClip, tmp_path: Path
) -> None:
    tags = None if "b" in pix_fmt.replace("b0", "b") and pix_fmt[0] in "bg" else (1, 1, 1, 1)
    frames, info, got = read(make_clip(tmp_path / "a.mkv", codec=codec, pix_fmt=pix_fmt, tags=tags, pts=(0, 512)))
    assert info.pix_fmt == pix_fmt
    assert got == warnings
    solid = np.s_[4:12, 4:20]
    assert np.abs(frames[0].rgb[solid].astype(int) - quarters[solid]).max() <= 2


def test_pixel_aspect_turns_with_the_picture(make_clip: MakeClip, tmp_path: Path) -> None:
    upright = probe(make_clip(tmp_path / "a.mp4", aspect=Fraction(4, 3)))
    turned = probe(make_clip(tmp_path / "b.mp4", aspect=Fraction(4, 3), rotation=(90, False)))
    assert (upright.width, upright.height, upright.sample_aspect_ratio) == (48, 32, Fraction(4, 3))
    assert (turned.width, turned.height, turned.sample_aspect_ratio) == (32, 48, Fraction(3, 4))


def test_interlaced_pictures_are_read_whole(make_clip: MakeClip, tmp_path: Path) -> None:
    frames, _, warnings = read(make_clip(tmp_path / "a.mp4", options={"x264-params": "tff=1", "preset": "medium"}))
    assert len(frames) == 8
    assert warnings == ["interlaced; whole frames were read as they are, both fields woven"]


def test_description(make_clip: MakeClip, tmp_path: Path) -> None:
    info = probe(make_clip(tmp_path / "a.mp4", audio=("aac", 0)))
    assert (info.kind, info.codec, info.frames, info.duration) == ("video", "h264", 8, pytest.approx(0.32))
    assert [(s.index, s.type, s.codec, s.language) for s in info.streams] == [(1, "audio", "aac", "eng")]
    record = info.to_json()
    assert (record["time_base"], record["streams"][0]["codec"], record["colour"]["matrix"]) == (
        "1/12800",
        "aac",
        "bt709",
    )


def test_a_video_that_breaks_in_the_middle(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", pts=range(0, 20 * 512, 512), options={"g": "5"})
    with av.open(str(clip)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    data = bytearray(clip.read_bytes())
    data[places[12] : places[12] + 8] = b"\xff" * 8  # the length of its first NAL unit
    clip.write_bytes(data)
    seen: list[Frame] = []
    with (
        open_reader(clip) as reader,
        pytest.raises(InputError, match=r"a\.mp4: the video breaks after frame") as caught,
    ):
        seen.extend(reader)
    assert len(seen) <= 12
    assert "\n" not in str(caught.value)


def test_a_recording_that_starts_between_key_frames(make_clip: MakeClip, tmp_path: Path) -> None:
    whole = make_clip(tmp_path / "a.ts", pts=range(0, 20 * 512, 512), options={"g": "10"})
    with av.open(str(whole)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    late = tmp_path / "late.ts"
    late.write_bytes(whole.read_bytes()[places[4] :])
    frames, _, _ = read(late)
    assert 10 <= len(frames) <= 16


def test_a_video_that_changes_size(make_clip: MakeClip, quarters: np.ndarray, tmp_path: Path) -> None:
    one = make_clip(tmp_path / "a.h264", muxer="h264")
    other = make_clip(tmp_path / "b.h264", muxer="h264", picture=np.tile(quarters, (2, 2, 1)))
    both = tmp_path / "both.h264"
    both.write_bytes(one.read_bytes() + other.read_bytes())
    with open_reader(both) as reader, pytest.raises(InputError, match="changes size mid-way, from 48x32 to 96x64"):
        list(reader)


def test_no_picture_and_no_frames(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    with av.open(str(clip)) as source, av.open(str(tmp_path / "sound.m4a"), "w", format="mp4") as output:
        copy = output.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
    with pytest.raises(InputError, match=r"sound\.m4a: holds no picture, only audio; leave it out"):
        probe(tmp_path / "sound.m4a")
    with av.open(str(tmp_path / "empty.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=25, width=64, height=64)
        stream.pix_fmt = "yuv420p"
        output.start_encoding()
    with pytest.raises(InputError, match=r"empty\.mp4: "):
        probe(tmp_path / "empty.mp4")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("zero.mp4", b""),
        ("text.mp4", b"hello, this is no video\n" * 40),
        ("ansi.mp4", b"\x1b[31mred\x1b[0m\n" * 40),
        ("noise.mp4", bytes(np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8))),
        ("subtitle.mp4", b"1\n00:00:01,000 --> 00:00:02,000\nhi\n\n"),
        ("playlist.mp4", b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nhttp://localhost/a.ts\n#EXT-X-ENDLIST\n"),
        ("png.mp4", b"\x89PNG\r\n\x1a\n"),
        ("zero.png", bytes(64)),
    ],
)
def test_files_that_are_no_media(name: str, content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for use in (probe, open_reader):
        with pytest.raises(InputError) as caught:
            use(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_folders_and_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        probe(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        probe(tmp_path / "missing.mp4")


@pytest.mark.parametrize("suffix", [".mp4", ".m3u8", ".mkv"])
@pytest.mark.parametrize("head", ["ffconcat version 1.0\nfile {}\n", "#EXTM3U\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"])
def test_a_list_of_other_files_is_not_followed(
    suffix: str, head: str, make_clip: Callable[..., Path], tmp_path: Path
) -> None:
    secret = make_clip(tmp_path / "secret.ts")
    path = tmp_path / f"list{suffix}"
    path.write_text(head.format(secret.name))
    with pytest.raises(InputError, match="is a list of other files"):
        open_reader(path)
