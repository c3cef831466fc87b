"""Sound of clips that were trimmed or cut without encoding them anew: what the edit list leaves out stays unheard."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import pytest
from edit_lists import write_edits

from tvae.pipeline.media import WriteOptions, copy_streams, open_reader, open_writer

MakeClip = Callable[..., Path]
RATE = 48000
LEAD_IN = Fraction(1, 5)
"""That may be heard before a clip in containers that hide nothing: what decoders need before the first sound."""


def heard(path: Path) -> list[tuple[Fraction, int]]:
    """When, from the first picture on, and how many samples, by PyAV alone."""
    with av.open(str(path)) as container:
        picture = next(container.decode(video=0))
        start = (picture.pts or 0) * (picture.time_base or 0)
    with av.open(str(path)) as container:
        return [
            ((sound.pts or 0) * (sound.time_base or 0) - start, sound.samples) for sound in container.decode(audio=0)
        ]


@pytest.fixture(params=["straight", "latents"])
def carried(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path, str], tuple[Path, list[str]]]:
    """The clip again with its sound, from the source or from what lies beside its latents, and the warnings."""

    def carry(source: Path, suffix: str) -> tuple[Path, list[str]]:
        warnings: list[str] = []
        sound = source if request.param == "straight" else copy_streams(source, tmp_path / "streams", warnings)
        with (
            open_reader(source) as reader,
            open_writer(
                tmp_path / f"b{suffix}", reader.info.spec, WriteOptions(audio=sound, enc={"preset": "ultrafast"})
            ) as writer,
        ):
            for frame in reader:
                writer.write(frame)
            writer.commit()
        return writer.path, warnings + writer.warnings

    return carry


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize(
    "edits",
    [
        pytest.param([(4800, 24000)], id="its beginning is cut off"),
        pytest.param([(4800, 1024), (4800, -1), (4800, 24000)], id="a gap in it"),
        pytest.param([(4800, 1500), (4800, 20000)], id="a piece cut out of it"),
        pytest.param([(4800, 1024), (4800, 1024)], id="twice the same"),
        pytest.param([(4800, 20000), (4800, 1024)], id="in another order"),
    ],
)
def test_what_is_cut_out_stays_out(
    edits: list[tuple[int, int]],
    suffix: str,
    carried: Callable[[Path, str], tuple[Path, list[str]]],
    make_clip: MakeClip,
    tmp_path: Path,
) -> None:
    whole = make_clip(
        tmp_path / "whole.mp4",
        pts=range(0, 20 * 512, 512),
        audio=("aac", 0),
        muxer_options={"movie_timescale": str(RATE)},
    )
    source = write_edits(whole, tmp_path / "a.mp4", 1, edits)
    before = heard(source)
    path, warnings = carried(source, suffix)
    assert [text for text in warnings if "packets" in text] == []
    after = heard(path)
    if suffix == ".mp4":
        assert after == before
    else:
        assert [samples for time, samples in after if time < -LEAD_IN] == []
        times = [time for time, _ in after if time > -Fraction(1, 1000)]
        known = [time for time, _ in before]
        assert times == pytest.approx(known[len(known) - len(times) :], abs=1.1e-3)
        assert len(known) - len(times) <= 1  # the first, where only a part of it is heard


def test_of_a_track_of_which_nothing_is_heard_nothing_is_kept(make_clip: MakeClip, tmp_path: Path) -> None:
    whole = make_clip(tmp_path / "whole.mp4", audio=("aac", 0))
    source = write_edits(whole, tmp_path / "a.mp4", 1, [(500, 10_000_000)])
    with av.open(str(source)) as container:
        assert all(packet.is_discard for packet in container.demux(audio=0) if packet.size)
    warnings: list[str] = []
    assert copy_streams(source, tmp_path / "streams", warnings) is None
    assert warnings == ["stream 1 left out: it is empty"]
