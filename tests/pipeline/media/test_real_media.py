"""The real clips beside the checkout, through latents' folder and back into an MP4; skipped where they are not."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import WriteOptions, copy_streams, open_reader, open_writer, probe

FAST = {"preset": "ultrafast"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "frames", "first_pts", "rotation"),
    [
        # the next is made of it
        pytest.param("sam2_01_dog_720p.mp4", 289, [0, 1001, 2002, 3003], 0, marks=pytest.mark.slow),
        ("derived_dog_720p_vfr_aac.mp4", 123, [0, 1001, 2002, 5005], 0),
        ("phone_1080p_vfrgap_aac.mp4", 41, [0, 16610, 19609, 22608], 0),
        ("decord_rot90_3frames.mov", 3, [0, 640, 1280], 270),
        pytest.param("bbb_1080p_5s_aac6ch.mp4", 120, [0, 512, 1024, 1536], 0, marks=pytest.mark.slow),
        pytest.param("cockatoo_720p_yuv444.mp4", 280, [0, 512, 1024, 1536], 0, marks=pytest.mark.slow),
        pytest.param("vtest_pedestrians_768x576.avi", 795, [0, 1, 2, 3], 0, marks=pytest.mark.slow),
    ],
)
def test_clip(
    name: str,
    frames: int,
    first_pts: list[int],
    rotation: int,
    shared_media: Path,
    tmp_path: Path,
    demux: Callable[[Path], tuple[Fraction, list[tuple[int, int]], list]],
) -> None:
    source, target, warnings = shared_media / "video" / name, tmp_path / "out.mp4", []
    side = copy_streams(source, tmp_path / "streams", warnings)
    kept = []
    with open_reader(source) as reader:
        # every fourth pixel: encoding whole pictures would take most of the time
        like = replace(reader.info.spec, width=reader.info.width // 4, height=reader.info.height // 4)
        with open_writer(target, like, WriteOptions(audio=side, enc=FAST)) as writer:
            for frame in reader:
                frame.rgb = np.ascontiguousarray(frame.rgb[::4, ::4])
                writer.write(frame)
                kept += [frame.rgb] if len(kept) < 4 else []
            writer.commit()
    time_base, picture, others = demux(source)
    written_base, written, written_others = demux(target)
    assert len(written) == frames
    assert [pts for pts, _ in written][: len(first_pts)] == first_pts
    assert ([pts for pts, _ in written], written_base) == ([pts for pts, _ in picture], time_base)
    assert [entry.payloads for entry in written_others] == [entry.payloads for entry in others]
    assert [entry.starts for entry in written_others] == [pytest.approx(entry.starts, abs=1e-9) for entry in others]
    before, after = probe(source), probe(target)
    assert (before.rotation, after.rotation) == (rotation, 0)
    assert (after.width * 4, after.height * 4) == (before.width, before.height)
    with open_reader(target) as again:
        differences = [np.abs(a.astype(float) - b.rgb).mean() for a, b in zip(kept, again, strict=False)]
    assert max(differences) < 5


def test_the_corrupted_clip_is_refused(shared_media: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = shared_media / "video" / "decord_corrupted_720p.mp4"
    with open_reader(source) as reader, pytest.raises(InputError, match="the video breaks after frame"):
        list(reader)
    assert capfd.readouterr() == ("", "")


def test_the_timecode_comes_with_the_metadata(shared_media: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    side = copy_streams(shared_media / "video" / "sam2_01_dog_720p.mp4", tmp_path / "streams", warnings)
    assert warnings == []
    assert side is not None
    assert side.streams[0].times == [[454, -1024, -1024, 1024]]
    with av.open(str(tmp_path / "streams.mp4")) as container:
        assert [stream.type for stream in container.streams] == ["audio"]


def test_kodak(shared_media: Path) -> None:
    sizes = {(info.width, info.height) for info in map(probe, sorted((shared_media / "kodak").glob("*.png"))[:4])}
    assert sizes <= {(768, 512), (512, 768)}
