"""Chapters, metadata, cover, attachments and data tracks, through the latents' folder and straight through."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image
from slow_but import slow_but

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import (
    ClipTags,
    SideStreams,
    WriteOptions,
    copy_streams,
    open_reader,
    open_writer,
    read_fingerprint,
    read_tags,
)

MakeClip = Callable[..., Path]
WORDS = {"title": "A title", "artist": "An artist", "comment": "two\nlines", "date": "1999"}
CHAPTERS = [(0, 120, "one"), (120, 320, "zwei \u00e4")]
FONT = b"\0\1\0\0 a font"
MARK = "ab" * 32


def cover() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(file, "JPEG")
    return file.getvalue()


def dressed(clip: Path, target: Path, words: dict[str, str], **more: object) -> Path:
    """The clip in another container, with metadata, chapters, and what else is asked for."""
    with av.open(str(clip)) as source, av.open(str(target), "w") as output:
        copies = {s.index: output.add_stream_from_template(s, opaque=True) for s in source.streams}
        copies[0].metadata.update({"language": "fra", "title": "left eye"})
        output.metadata.update(words)
        output.set_chapters(
            [
                {"id": n, "start": a, "end": b, "time_base": Fraction(1, 1000), "metadata": {"title": name}}
                for n, (a, b, name) in enumerate(CHAPTERS, 1)
            ]
        )
        if "font" in more:
            output.add_attachment("a.ttf", "font/ttf", FONT)
            output.add_attachment("cover.jpg", "image/jpeg", cover())
        packets = []
        if "cover" in more:
            with av.open(io.BytesIO(cover())) as picture:
                stream = output.add_stream_from_template(picture.streams.video[0], opaque=True)
            stream.disposition = Disposition.attached_pic
            packets.append(av.Packet(cover()))
            packets[0].stream, packets[0].pts, packets[0].dts = stream, 0, 0
        if "data" in more:
            stream = output.add_data_stream(str(more["data"]))
            for number in range(4):
                packet = av.Packet(b"data %d" % number)
                packet.stream, packet.time_base = stream, Fraction(1, 25)
                packet.pts = packet.dts = number
                packet.duration = 1
                packets.append(packet)
        for packet in packets + [p for p in source.demux() if p.size]:
            if packet.stream.container is source:
                packet.stream = copies[packet.stream_index]
            output.mux_one(packet)
    return target


def both_ways(source: Path, folder: Path, suffix: str) -> list[tuple[Path, list[str]]]:
    """Written straight from the source, and from what lies beside latents; what each said."""
    results = []
    for name in ("straight", "kept"):
        said: list[str] = []
        tags = read_tags(source, said)
        side: SideStreams | Path | None = source
        if name == "kept":
            found = copy_streams(source, folder / "streams", said)
            record = json.loads(json.dumps((found.to_json() if found else {"streams": []}) | {"tags": tags.to_json()}))
            side, tags = SideStreams.from_json(record, folder), ClipTags.from_record(record, folder)
        target = folder / f"{name}{suffix}"
        options = WriteOptions(audio=side, tags=tags, fingerprint=MARK)
        with open_reader(source) as reader, open_writer(target, reader.info.spec, options) as writer:
            for frame in reader:
                writer.write(frame)
            writer.commit()
        assert read_fingerprint(target) == MARK
        said += [line for line in writer.warnings if not line.startswith("timestamps rounded")]
        results.append((target, said))
    return results


def chapters(container: av.container.InputContainer) -> list[tuple[float, float, str]]:
    return [
        (float(c["start"] * c["time_base"]), float(c["end"] * c["time_base"]), c["metadata"]["title"])
        for c in container.chapters()
    ]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm"])
@pytest.mark.parametrize("origin", slow_but([".mp4", ".mkv"], [".mp4", ".mov", ".mkv"]))
def test_chapters_and_metadata(origin: str, suffix: str, make_clip: MakeClip, tmp_path: Path) -> None:
    source = dressed(make_clip(tmp_path / "a.mp4", audio=("aac", 0)), tmp_path / f"b{origin}", WORDS)
    for target, said in both_ways(source, tmp_path / "latents", suffix):
        with av.open(str(target)) as container:
            found = {key.lower(): text for key, text in container.metadata.items()}
            assert {key: found.get(key) for key in WORDS} == WORDS
            assert chapters(container) == [(a / 1000, b / 1000, name) for a, b, name in CHAPTERS]
            picture = {key.lower(): text for key, text in container.streams.video[0].metadata.items()}
            assert picture.get("title", picture.get("name")) == "left eye"
            if ".mov" not in (origin, suffix):  # whose languages are Macintosh's
                assert picture["language"] == "fra"
            if suffix != ".webm":
                assert [stream.type for stream in container.streams if stream.type != "data"] == ["video", "audio"]
        assert [line for line in said if "moved" not in line] == (  # where the sound from MP4 begins before zero
            []
            if suffix != ".webm"
            else ["stream 1 (audio, aac) left out: webm files cannot hold it; write .mkv to keep it"]
        )


def test_what_a_container_cannot_hold_is_said(make_clip: MakeClip, tmp_path: Path) -> None:
    words = WORDS | {"my_word": "x"}
    source = dressed(make_clip(tmp_path / "a.mp4"), tmp_path / "b.mkv", words, font=True)
    for _, said in both_ways(source, tmp_path / "latents", ".mp4"):
        assert said == [
            "stream 1 (attachment, font/ttf) left out: mp4 files cannot hold it; write .mkv to keep it",
            "metadata MY_WORD left out: mp4 files cannot hold them; write .mkv to keep them",
        ]
    for _, said in both_ways(source, tmp_path / "other", ".mov"):
        assert said == [
            "stream 1 (attachment, font/ttf) left out: mov files cannot hold it; write .mkv to keep it",
            "stream 2 (cover, image/jpeg) left out: mov files cannot hold it; write .mkv to keep it",
            "metadata MY_WORD left out: mov files cannot hold them; write .mkv to keep them",
        ]


@pytest.mark.parametrize(("origin", "suffix"), [(".mp4", ".mp4"), (".mp4", ".mkv"), (".mkv", ".mkv"), (".mkv", ".mp4")])
def test_covers_and_attachments(origin: str, suffix: str, make_clip: MakeClip, tmp_path: Path) -> None:
    kind = {"font": True} if origin == ".mkv" else {"cover": True}
    source = dressed(make_clip(tmp_path / "a.mp4", audio=("aac", 0)), tmp_path / f"b{origin}", WORDS, **kind)
    for target, _ in both_ways(source, tmp_path / "latents", suffix):
        with av.open(str(target)) as container:
            (picture,) = [s for s in container.streams.video if s.disposition & Disposition.attached_pic]
            assert b"".join(bytes(p) for p in container.demux(picture)) == cover()
            if suffix == ".mkv":
                assert picture.metadata == {"filename": "cover.jpg", "mimetype": "image/jpeg"}
            if origin == suffix == ".mkv":
                (font,) = container.streams.attachments
                assert (font.name, font.mimetype, font.data) == ("a.ttf", "font/ttf", FONT)


def test_data_tracks(make_clip: MakeClip, tmp_path: Path) -> None:
    source = dressed(make_clip(tmp_path / "a.mp4"), tmp_path / "b.mp4", {}, data="bin_data")
    for target, said in both_ways(source, tmp_path / "latents", ".mp4"):
        assert said == []
        with av.open(str(target)) as container:
            (data,) = [s for s in container.streams.data if s.name == "bin_data" and s.discard.name == "default"]
            found = [(float(p.pts * p.time_base), bytes(p)) for p in container.demux(data) if p.size]
        assert found == [(number / 25, b"data %d" % number) for number in range(4)]
    for _, said in both_ways(source, tmp_path / "other", ".mkv"):
        assert said == ["stream 1 (data, bin_data) left out: matroska files cannot hold it; write .mp4 to keep it"]


def test_a_second_picture_and_the_timecode(make_clip: MakeClip, tmp_path: Path) -> None:
    clip, source = make_clip(tmp_path / "a.mp4"), tmp_path / "b.mov"
    with av.open(str(clip)) as one, av.open(str(source), "w") as output:
        encoder = output.add_stream("libx264", rate=25, width=48, height=32)
        encoder.pix_fmt = "yuv420p"
        encoder.metadata["timecode"] = "01:02:03:04"
        copy = output.add_stream_from_template(one.streams.video[0], opaque=True)
        for frame in one.decode(video=0):
            frame.pict_type = 0
            output.mux(encoder.encode(frame))
        output.mux(encoder.encode(None))
        one.seek(0)
        for packet in one.demux():
            if packet.size:
                packet.stream = copy
                output.mux_one(packet)
    with av.open(str(clip)) as one:
        payloads = [bytes(p) for p in one.demux() if p.size]
    for target, said in both_ways(source, tmp_path / "latents", ".mp4"):
        assert said == []
        with av.open(str(target)) as container:
            assert [bytes(p) for p in container.demux(container.streams.video[1]) if p.size] == payloads
            assert container.streams.video[0].metadata["timecode"] == "01:02:03:04"


def test_a_source_that_tvae_made(make_clip: MakeClip, tmp_path: Path) -> None:
    """Its fingerprint is not metadata of the clip."""
    source = make_clip(tmp_path / "a.mp4")
    ((first, _), _) = both_ways(source, tmp_path / "latents", ".mp4")
    assert read_tags(first, []).metadata == {}


def test_damaged_records(tmp_path: Path, make_clip: MakeClip) -> None:
    source = dressed(make_clip(tmp_path / "a.mp4"), tmp_path / "b.mkv", WORDS, font=True)
    record = {"tags": read_tags(source, []).to_json()}
    (first, second) = record["tags"]["chapters"]
    for chapter in ({"start": -1}, {"start": 2**62, "end": 2**62}, {"end": 0, "start": 5}, {"metadata": []}):
        damaged = {"tags": record["tags"] | {"chapters": [first | chapter, second]}}
        with pytest.raises(InputError, match="record of its chapters and metadata is damaged"):
            ClipTags.from_record(damaged, tmp_path)
    for damaged in ({"metadata": {"title": "\udcff"}}, {"picture": {"\udcff": "x"}}):
        with pytest.raises(InputError, match="record of its chapters and metadata is damaged"):
            ClipTags.from_record({"tags": record["tags"] | damaged}, tmp_path)
    assert ClipTags.from_record({"streams": []}, tmp_path) == ClipTags()
    side = copy_streams(source, tmp_path / "latents" / "streams", [])
    assert side is not None
    folder = tmp_path / "latents"
    for change in ({"file": "../b.mkv"}, {"size": -1}, {"size": 2**40}, {"name": "\udcff"}):
        wrong = side.to_json()
        wrong["attachments"][0] |= change
        with pytest.raises(InputError, match="record of its other streams is damaged"):
            SideStreams.from_json(wrong, folder)
    (folder / side.attachments[0].file).write_bytes(b"other")
    with open_reader(source) as reader, pytest.raises(InputError, match="is damaged: it is not what was written"):
        open_writer(tmp_path / "c.mkv", reader.info.spec, WriteOptions(audio=replace(side)))
    (folder / side.attachments[0].file).unlink()
    with pytest.raises(InputError, match="which holds other streams of it, is missing"):
        SideStreams.from_json(side.to_json(), folder)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_metadata_that_muxers_refuse(suffix: str, make_clip: MakeClip, tmp_path: Path) -> None:
    """They refuse the whole file for it."""
    source = make_clip(tmp_path / "a.mp4")
    tags = ClipTags(picture={"stereo_mode": "-1", "timecode": "nonsense", "title": "T"})
    with open_reader(source) as reader:
        spec, frames = replace(reader.info.spec, frame_rate=Fraction(1000)), list(reader)
    with open_writer(tmp_path / f"b{suffix}", spec, WriteOptions(tags=tags)) as writer:
        for frame in frames:
            writer.write(frame)
        writer.commit()
    with av.open(str(tmp_path / f"b{suffix}")) as container:
        picture = container.streams.video[0].metadata
        assert picture.get("title", picture.get("name")) == "T"


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_what_mxf_says_of_its_writer_is_not_kept(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / "a.mxf"
    with av.open(str(source), "w") as output:
        picture = output.add_stream("mpeg2video", rate=25, width=64, height=48)
        picture.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        output.mux([*picture.encode(frame), *picture.encode(None)])
    for target, said in both_ways(source, tmp_path / "latents", suffix):
        assert said == []
        with av.open(str(target)) as container:
            assert [key for key in container.metadata if "uid" in key.lower() or "product" in key.lower()] == []
