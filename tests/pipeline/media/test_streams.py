"""Sound and subtitles through the latents' folder and straight through, compared with PyAV's demuxer alone."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import SideStreams, WriteOptions, copy_streams, open_reader, open_writer

Demux = Callable[[Path], tuple[Fraction, list[tuple[int, int]], list]]
MakeClip = Callable[..., Path]
FAST = {"preset": "ultrafast"}


def through(source: Path, target: Path, audio: SideStreams | Path | None) -> list[str]:
    """Re-encode the picture, carry the rest."""
    with (
        open_reader(source) as reader,
        open_writer(target, reader.info.spec, WriteOptions(audio=audio, enc=FAST)) as writer,
    ):
        for frame in reader:
            writer.write(frame)
        writer.commit()
    return writer.warnings


def kept(source: Path, folder: Path) -> tuple[SideStreams, list[str]]:
    """Beside the latents, through JSON."""
    warnings: list[str] = []
    side = copy_streams(source, folder / "streams", warnings)
    assert side is not None
    return SideStreams.from_json(json.loads(json.dumps(side.to_json())), folder), warnings


def remux(source: Path, target: Path, **codecs: str) -> Path:
    """Copy a clip into another container, the sound re-encoded with ``audio`` where given, SubRip lines added."""
    with av.open(str(source)) as container, av.open(str(target), "w") as output:
        video, sound = container.streams.video[0], container.streams.audio[0]
        copies = {video.index: output.add_stream_from_template(video, opaque=True)}
        encoder = output.add_stream(codecs["audio"], rate=48000) if "audio" in codecs else None
        if encoder is None:
            copies[sound.index] = output.add_stream_from_template(sound)
            copies[sound.index].metadata["language"] = "fra"
            copies[sound.index].disposition = av.stream.Disposition.default
        lines = output.add_mux_stream(codecs["subtitle"]) if "subtitle" in codecs else None
        if lines is not None:
            lines.time_base = Fraction(1, 1000)
            lines.metadata["language"] = "deu"
        for packet in container.demux(video, sound):
            if packet.size and packet.stream_index in copies:
                packet.stream = copies[packet.stream_index]
                output.mux(packet)
            elif encoder is not None and packet.stream_index == sound.index:
                for samples in packet.decode():
                    output.mux(encoder.encode(samples))
        if encoder is not None:
            output.mux(encoder.encode(None))
        if lines is not None:
            for start, text in ((40, b"one"), (200, b"two")):
                packet = av.Packet(text)
                packet.stream, packet.time_base = lines, Fraction(1, 1000)
                packet.pts, packet.dts, packet.duration = start, start, 100
                output.mux(packet)
    return target


def assert_in_step(source: tuple, target: tuple, tolerance: float = 1e-6) -> None:
    """Payloads identical, times relative to the picture's start equal."""
    starts = [picture[0][0] * float(time_base) for time_base, picture, _ in (source, target)]
    assert len(source[2]) == len(target[2]) > 0
    for before, after in zip(source[2], target[2], strict=True):
        assert (before.type, before.language, before.disposition) == (after.type, after.language, after.disposition)
        assert before.payloads == after.payloads
        assert np.subtract(after.starts, starts[1]) == pytest.approx(
            np.subtract(before.starts, starts[0]), abs=tolerance
        )


@pytest.mark.parametrize("first_sample", [0, 24000, -4800], ids=["together", "late", "early"])
@pytest.mark.parametrize("first_frame", [0, 6400], ids=["at zero", "later"])
def test_sound_stays_in_step(
    first_sample: int, first_frame: int, make_clip: MakeClip, demux: Demux, tmp_path: Path
) -> None:
    pts = [first_frame + value for value in (0, 512, 1024, 2600, 3100, 6000)]
    source = make_clip(
        tmp_path / "a.mp4", pts=pts, audio=("aac", first_sample), muxer_options={"movie_timescale": "192000"}
    )
    before = demux(source)
    assert through(source, tmp_path / "direct.mp4", source) == []
    assert_in_step(before, demux(tmp_path / "direct.mp4"))
    side, warnings = kept(source, tmp_path / "latents")
    assert warnings == []
    assert side.files == ("streams.mp4",)
    assert through(source, tmp_path / "decoded.mp4", side) == []
    assert_in_step(before, demux(tmp_path / "decoded.mp4"))
    assert [pts for pts, _ in demux(tmp_path / "decoded.mp4")[1]] == pts


def test_matroska_with_subtitles(make_clip: MakeClip, demux: Demux, tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    source = remux(clip, tmp_path / "a.mkv", subtitle="subrip")
    before = demux(source)
    assert [entry.type for entry in before[2]] == ["audio", "subtitle"]
    side, warnings = kept(source, tmp_path / "latents")
    assert (side.files, warnings) == (("streams.mkv",), [])
    assert [(stream.codec, stream.language) for stream in side.streams] == [("aac", "fra"), ("subrip", "deu")]
    through(source, tmp_path / "b.mkv", side)
    assert_in_step(before, demux(tmp_path / "b.mkv"), tolerance=1e-3)
    left_out = "stream 2 (subtitle, subrip) left out: mp4 files cannot hold it; write .mkv to keep it"
    for audio in (side, source):
        assert through(source, tmp_path / "b.mp4", audio) == [left_out]
        after = demux(tmp_path / "b.mp4")
        assert_in_step((before[0], before[1], before[2][:1]), after)


@pytest.mark.parametrize(
    ("codec", "suffix"), [("pcm_s16le", ".mov"), ("pcm_s24le", ".mkv"), ("libopus", ".mkv"), ("mp3", ".avi")]
)
def test_other_codecs(codec: str, suffix: str, make_clip: MakeClip, demux: Demux, tmp_path: Path) -> None:
    source = remux(make_clip(tmp_path / "a.mp4", audio=("aac", 0)), tmp_path / f"a{suffix}", audio=codec)
    side, warnings = kept(source, tmp_path / "latents")
    assert warnings == []
    target = tmp_path / f"b{'.mov' if suffix == '.avi' else suffix}"
    through(source, target, side)
    before, after = demux(source)[2], demux(target)[2]
    assert b"".join(before[0].payloads) == b"".join(after[0].payloads)
    begins = 0 if suffix == ".avi" else demux(source)[1][0][0] * demux(source)[0]  # of AVI FFmpeg guesses it
    assert after[0].starts[0] - before[0].starts[0] == pytest.approx(
        float(demux(target)[1][0][0] * demux(target)[0] - begins), abs=2e-3
    )


@pytest.mark.parametrize("suffix", [".mkv", ".avi"])
def test_samples_without_a_layout_go_into_mp4(suffix: str, make_clip: MakeClip, demux: Demux, tmp_path: Path) -> None:
    """These containers count channels alone, and MP4 wants to know where each is heard."""
    source = remux(make_clip(tmp_path / "a.mp4", audio=("aac", 0)), tmp_path / f"a{suffix}", audio="pcm_s16le")
    with av.open(str(source)) as container:
        assert container.streams.audio[0].codec_context.layout.name.endswith(" channels")
    side, _ = kept(source, tmp_path / "latents")
    for audio in (side, source):
        assert through(source, tmp_path / "b.mp4", audio) == []
        before, after = demux(source)[2], demux(tmp_path / "b.mp4")[2]
        assert b"".join(before[0].payloads) == b"".join(after[0].payloads)


@pytest.mark.parametrize(
    ("codec", "suffix", "frames"), [("alac", ".mkv", 1), ("alac", ".mkv", 2), ("alac", ".mkv", 5), ("aac", ".nut", 5)]
)
def test_a_last_packet_without_a_duration_is_heard(
    codec: str, suffix: str, frames: int, make_clip: MakeClip, demux: Demux, tmp_path: Path
) -> None:
    """Matroska does not say how long ALAC's packets are, and NUT of none; MP4 ends where the last one does."""
    clip = make_clip(tmp_path / "a.mp4", pts=[512 * number for number in range(frames)], audio=("aac", 0))
    source = remux(clip, tmp_path / f"a{suffix}", audio=codec)
    payloads = demux(source)[2][0].payloads
    side, warnings = kept(source, tmp_path / "latents")
    assert warnings == []
    for audio in (side, source):
        for target in (tmp_path / "b.mp4", tmp_path / "b.mov"):
            assert through(source, target, audio) == []
            assert demux(target)[2][0].payloads == payloads
            with av.open(str(source)) as before, av.open(str(target)) as after:
                heard = [sum(frame.samples for frame in file.decode(audio=0)) for file in (before, after)]
            assert heard[0] == heard[1]


def test_adts_headers_are_kept_beside_the_latents(make_clip: MakeClip, demux: Demux, tmp_path: Path) -> None:
    """MPEG-TS has AAC with a header on every packet. MP4 does not: there they go, and only they."""
    source = make_clip(tmp_path / "a.ts", audio=("aac", 0))
    before = demux(source)
    assert before[2][0].payloads[0][:2] == b"\xff\xf1"
    side, warnings = kept(source, tmp_path / "latents")
    assert (side.files, warnings) == (("streams.nut",), [])
    through(source, tmp_path / "b.mp4", side)
    after = demux(tmp_path / "b.mp4")
    assert after[2][0].payloads == [payload[7:] for payload in before[2][0].payloads]
    origin = before[1][0][0] * float(before[0]), after[1][0][0] * float(after[0])
    assert np.subtract(after[2][0].starts, origin[1]) == pytest.approx(
        np.subtract(before[2][0].starts, origin[0]), abs=3e-5
    )


def test_decoding_needs_nothing_but_the_folder(make_clip: MakeClip, demux: Demux, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    silent = make_clip(tmp_path / "silent.mp4")
    before = demux(source)
    side, _ = kept(source, tmp_path / "latents")
    source.unlink()
    (tmp_path / "latents").rename(tmp_path / "moved")
    moved = SideStreams.from_json(side.to_json(), tmp_path / "moved")
    through(silent, tmp_path / "b.mp4", moved)
    assert_in_step(before, demux(tmp_path / "b.mp4"))


def test_nothing_to_keep(make_clip: MakeClip, tmp_path: Path) -> None:
    clip, warnings = make_clip(tmp_path / "a.mp4"), []
    assert copy_streams(clip, tmp_path / "streams", warnings) is None
    assert warnings == []
    assert through(clip, tmp_path / "b.mp4", clip) == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.mp4", "b.mp4"]


def test_a_container_that_takes_no_sound(make_clip: MakeClip, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    with (
        open_reader(source) as reader,
        open_writer(tmp_path / "a.webm", reader.info.spec, WriteOptions(audio=source)) as writer,
    ):
        assert writer.warnings[0] == (
            "stream 1 (audio, aac) left out: webm files cannot hold it; write .mkv to keep it"
        )


def test_retiming_says_that_the_sound_stays(make_clip: MakeClip, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    options = WriteOptions(audio=source, fps=Fraction(30))
    with open_reader(source) as reader, open_writer(tmp_path / "b.mp4", reader.info.spec, options) as writer:
        assert writer.warnings == ["the picture runs at 30 frames a second now, sound as before"]


def test_damaged_records(make_clip: MakeClip, tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.mp4", audio=("aac", 0))
    other = make_clip(tmp_path / "other.mp4", audio=("mp2", 0))
    side, _ = kept(source, tmp_path / "latents")
    record = side.to_json()
    (good,) = record["streams"]
    bad = (
        {"file": "../a.mp4"},
        {"times": [[1, 2]]},
        {"times": [[2**40, 0, 0, 2**40]]},
        {"time_base": "inf"},
        {"size": "1"},
    )
    for damaged in (
        {},
        {"streams": [{}]},
        {"streams": [good] * 1100},
        *({"streams": [good | change]} for change in bad),
    ):
        with pytest.raises(InputError, match="record of its other streams is damaged"):
            SideStreams.from_json(damaged, tmp_path / "latents")
    for changed in ({"crc32": 1}, {"packets": 1}, {"times": [[1, 0, 0, 1]]}, {"file_index": 3}):
        wrong = SideStreams.from_json({"streams": [{**record["streams"][0], **changed}]}, tmp_path / "latents")
        with pytest.raises(InputError, match="does not hold the streams that its index says"):
            through(source, tmp_path / "b.mp4", wrong)
    (tmp_path / "latents" / "streams.mp4").write_bytes(other.read_bytes())
    with pytest.raises(InputError, match="does not hold the streams"):
        through(source, tmp_path / "b.mp4", side)
    (tmp_path / "latents" / "streams.mp4").unlink()
    with pytest.raises(InputError, match=r"streams\.mp4, which holds other streams of it, is missing"):
        SideStreams.from_json(record, tmp_path / "latents")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.mp4", "latents", "other.mp4"]


@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".mov"])
def test_a_track_without_sound(suffix: str, make_clip: MakeClip, tmp_path: Path) -> None:
    """Containers drop it or keep it; nothing is lost, and nothing fails."""
    silent, source = make_clip(tmp_path / "silent.mp4"), tmp_path / "a.mkv"
    with av.open(str(silent)) as before, av.open(str(source), "w") as output:
        picture = output.add_stream_from_template(before.streams.video[0])
        output.add_stream("aac", rate=48000)
        for packet in before.demux(video=0):
            if packet.size:
                packet.stream = picture
                output.mux_one(packet)
    warnings: list[str] = []
    assert copy_streams(source, tmp_path / "streams", warnings) is None
    assert warnings == ["stream 1 left out: it is empty"]
    with av.open(str(source)) as before:
        assert [stream.type for stream in before.streams] == ["video", "audio"]
    through(source, tmp_path / f"b{suffix}", source)
