"""What a dataset.toml comes to, and what is refused by its name in it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from data_sets import BUCKETS

from tvae.pipeline.caches.tables.rows import rows_of
from tvae.pipeline.caches.tables.settings import Directory, read_settings
from tvae.pipeline.errors import UsageError


def read(tmp_path: Path, text: str) -> list[Directory]:
    path = tmp_path / "dataset.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path)


def test_ratios_are_rounded_and_resolutions_are_sides_of_squares(tmp_path: Path) -> None:
    (one,) = read(tmp_path, BUCKETS.replace("64, 96", "[64, 50], 96, 96.0004") + "[[directory]]\npath = 'x'")
    assert one.ratios == (0.5, 0.707, 1.0, 1.414, 2.0)
    assert one.resolutions == (round(math.sqrt(3200), 3), 96)
    assert (one.path, one.prefix, one.skips_uncaptioned, one.shuffles) == ("x", "", True, True)


def test_a_folder_has_settings_of_its_own(tmp_path: Path) -> None:
    text = (
        f"{BUCKETS}[[directory]]\npath = 'x'\n[[directory]]\npath = 'y'\nnum_repeats = 3\nskip_empty_caption = false\n"
    )
    first, second = read(tmp_path, text + "resolutions = [50]\nar_buckets = [[1, 2], 1.5]\ncaption_prefix = 'p '")
    assert (first.resolutions, first.skips_uncaptioned) == ((64, 96), True)
    assert second == Directory("y", (0.5, 1.5), (50,), (), (1,), "p ", False, True)


@pytest.mark.parametrize(
    ("ratios", "wanted"), [("[2, 1]", "(1, 2)"), ("[2, 1.5]", "(1.5, 2.0)"), ("[[4, 2]]", "(2.0,)")]
)
def test_whole_ratios_stay_whole_where_all_are(tmp_path: Path, ratios: str, wanted: str) -> None:
    """The order of images is drawn from how they are written."""
    text = f"resolutions = [64]\nenable_ar_bucket = true\nar_buckets = {ratios}\n[[directory]]\npath = 'x'"
    assert str(read(tmp_path, text)[0].ratios) == wanted


def test_without_buckets_all_is_square(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "resolutions = [64]\n[[directory]]\npath = 'x'\nframe_buckets = [1, 33]")
    assert one.ratios == (1.0,)


def test_named_sizes_have_the_longest_first(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "size_buckets = [[64, 64, 1], [96, 64, 9]]\n[[directory]]\npath = 'x'")
    assert (one.sizes, one.ratios, one.resolutions) == (((96, 64, 9), (64, 64, 1)), (1.0, 1.5), None)


def test_no_folder_is_left_out_because_there_are_many(tmp_path: Path) -> None:
    text = "resolutions = [64]\n" + "".join(f"[[directory]]\npath = 'folder {n}'\n" for n in range(1100))
    assert len(read(tmp_path, text)) == 1100


def test_a_link_to_itself_is_a_name_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        Path("loop").symlink_to("loop")
    except OSError:
        pytest.skip("no links here")
    (one,) = read(tmp_path, "resolutions = [64]\n[[directory]]\npath = 'loop'")
    with pytest.raises(UsageError, match=r"loop.* is no folder"):
        rows_of(one)


@pytest.mark.parametrize(
    "text",
    [
        f"resolutions = [{'9' * 4000}]\n[[directory]]\npath = 'x'",
        f"resolutions = [{[64] * 1000}]\n[[directory]]\npath = 'x'",
        f"resolutions = [64]\n'{'k' * 4000}' = 1\n[[directory]]\npath = 'x'",
    ],
)
def test_a_refusal_is_short(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert len(str(refused.value)) < len(str(tmp_path)) + 200


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("resolutions = [64", "no dataset.toml"),
        (f"a = {'[' * 2000}", "no dataset.toml"),
        ('resolutions = [64]\n[[directory]]\npath = "a\\u0000b"', "zero byte"),
        ("resolutions = [64]", r"no \[\[directory\]\]"),
        ("resolutions = [64]\n[[directory]]\npath = 3", "has no path"),
        ("[[directory]]\npath = 'x'\nresolutions = [64]", "resolutions are missing before the first"),
        ("resolutions = [64]\n[[directory]]\npath = 'x'\nmask_path = 'm'", "mask_path: masks"),
        ("resolutions = [64]\n[[directory]]\npath = 'x'\ncontrol_path = 'm'", "control images"),
        ("resolutions = [64]\nshuffle_tags = true\n[[directory]]\npath = 'x'", "random order"),
        ("resolutions = [64]\n[[directory]]\npath = 'x'\ncache_shuffle_num = 4", "random order"),
        ("resolutions = [64]\nresolution = 3\n[[directory]]\npath = 'x'", "'resolution' is no setting"),
        ("resolutions = ['a']\n[[directory]]\npath = 'x'", "no size or ratio"),
        ("resolutions = [0]\n[[directory]]\npath = 'x'", "no size or ratio"),
        ("resolutions = [1e-4]\n[[directory]]\npath = 'x'", "no size or ratio"),
        ("resolutions = [inf]\n[[directory]]\npath = 'x'", "no size or ratio"),
        ("size_buckets = [[64, 64]]\n[[directory]]\npath = 'x'", r"\[width, height, frames\]"),
        ("resolutions = [64]\nenable_ar_bucket = true\n[[directory]]\npath = 'x'", "min_ar is missing"),
        ("resolutions = [64]\nenable_ar_bucket = 1\n[[directory]]\npath = 'x'", "neither true nor false"),
        ("resolutions = [64]\n[[directory]]\npath = 'x'\n[[directory]]\npath = './x'", "named twice"),
    ],
)
def test_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_settings(tmp_path / "none.toml")
