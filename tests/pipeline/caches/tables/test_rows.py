"""Which files are images of the table, with which captions, and which buckets they come into. The sizes are those that
diffusion-pipe itself gave."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from data_sets import BUCKETS, CLIPS, made, made_with_videos, picture

from tvae.pipeline.caches.tables.rows import Row, buckets_of, rows_of
from tvae.pipeline.caches.tables.settings import read_settings
from tvae.pipeline.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(settings: str = BUCKETS) -> tuple[list[Row | None], list[str]]:
    path = Path("dataset.toml")
    path = path if path.exists() else made(settings)
    (folder,) = read_settings(path)
    listed, left_out = rows_of(folder)
    return listed, [f"{path.name}: {why.partition(': ')[2]}" for path, why in left_out]


def test_names_captions_and_groups() -> None:
    found, left_out = rows()
    assert left_out == []
    assert [(row.name, row.captions, row.key) for row in found if row is not None] == [
        (str(Path("pictures/a.png")), ("a caption of a.png",), (1.414, 1)),
        (str(Path("pictures/b.png")), ("a caption of b.png",), (0.707, 1)),
        (str(Path("pictures/c.png")), ("a caption of c.png",), (1.0, 1)),
        (str(Path("pictures/e.png")), ("a caption of e.png",), (1.0, 1)),
        (str(Path("pictures/größe.jpg")), ("a caption of größe.jpg",), (1.414, 1)),
    ]


def test_what_the_trainer_leaves_out_has_no_row_but_a_place_in_the_order() -> None:
    path = made()
    Path("pictures/b.txt").unlink()
    Path("pictures/c.png").write_bytes(b"no picture")
    for name in ("x.npz", "x.json", "x.db"):
        Path("pictures", name).touch()
    Path("pictures/folder.png").mkdir()
    assert path.exists()
    found, left_out = rows()
    assert [row if row is None else row.path.name for row in found] == ["a.png", None, None, "e.png", "größe.jpg"]
    assert left_out == ["b.png: it has no caption", "c.png: Pillow does not open it (UnidentifiedImageError)"]


def test_captions_of_one_file_take_the_place_of_texts() -> None:
    made(BUCKETS + "skip_empty_caption = false\ncaption_prefix = '* '")
    Path("pictures/captions.json").write_text(json.dumps({"a.png": ["one", "two"]}), encoding="utf-8")
    found, _ = rows()
    assert [row.captions for row in found if row is not None] == [("* one", "* two"), *[("* ",)] * 4]


def test_sizes_of_buckets() -> None:
    found, _ = rows()
    (folder,) = read_settings(Path("dataset.toml"))
    keys = [*dict.fromkeys(row.key for row in found if row is not None)]
    assert {one.folder: (one.name, one.size) for one in buckets_of(folder, keys, 16)} == {
        "cache_1.414x80x48x1": ((1.414, 80, 48, 1), (80, 48)),
        "cache_1.414x112x80x1": ((1.414, 112, 80, 1), (112, 80)),
        "cache_0.707x48x80x1": ((0.707, 48, 80, 1), (48, 80)),
        "cache_0.707x80x112x1": ((0.707, 80, 112, 1), (80, 112)),
        "cache_1.000x64x64x1": ((1.0, 64, 64, 1), (64, 64)),
        "cache_1.000x96x96x1": ((1.0, 96, 96, 1), (96, 96)),
    }


def test_named_sizes_are_rounded_for_the_encoder_alone() -> None:
    found, left_out = rows("size_buckets = [[64, 64, 1], [96, 50, 1]]")
    (folder,) = read_settings(Path("dataset.toml"))
    assert [row.key for row in found if row is not None][:3] == [(96, 50, 1), (64, 64, 1), (64, 64, 1)]
    (bucket,) = buckets_of(folder, [(96, 50, 1)], 16)
    assert (bucket.folder, bucket.name, bucket.size) == ("cache_96x50x1", (96, 50, 1), (96, 48))
    assert left_out == []


def test_an_image_that_fits_no_named_size_is_left_out() -> None:
    found, left_out = rows("size_buckets = [[64, 64, 9]]")
    assert {*found} == {None}
    assert left_out[0] == "a.png: size_buckets have none of one frame"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("more.tar", b"", "unpack it"),
        ("captions.json", b"[]", "no object with a list of captions"),
        ("captions.json", b'{"a.png": "one"}', "no list of captions"),
        ("captions.json", b"{", "cannot read"),
        ("captions.json", b'{"a.png": ["\\udc80"]}', "a caption of a.png is no Unicode"),
        ("a.txt", b"\xff", "no UTF-8 text"),
    ],
)
def test_refused(name: str, content: bytes, told: str) -> None:
    made()
    Path("pictures", name).write_bytes(content)
    if name not in ("captions.json", "a.txt"):
        Path("pictures", name).with_suffix(".txt").write_text("a caption")
    with pytest.raises(UsageError, match=told):
        rows()


def test_a_name_that_no_table_holds_is_refused() -> None:
    made()
    try:
        Path("pictures/a.png").rename(os.fsdecode(b"pictures/caf\xe9.png"))
        Path("pictures/a.txt").rename(os.fsdecode(b"pictures/caf\xe9.txt"))
    except (OSError, UnicodeError) as error:
        pytest.skip(f"this system has no such names: {error}")
    with pytest.raises(UsageError, match="its name is no Unicode"):
        rows()


def test_a_bucket_without_area_is_refused() -> None:
    rows("resolutions = [5]")
    (folder,) = read_settings(Path("dataset.toml"))
    with pytest.raises(UsageError, match="no area in multiples of 16"):
        buckets_of(folder, [(1.0, 1)], 16)


def clips(settings: str, fps: int | None) -> tuple[dict[str, object], list[str]]:
    """Groups of files, and reasons for those left out."""
    (folder,) = read_settings(made_with_videos(settings))
    listed, left_out = rows_of(folder, fps)
    groups: dict[str, object] = {row.path.name: row.key for row in listed if row is not None}
    return groups, [f"{path.name}: {why.partition(': ')[2]}" for path, why in left_out]


def test_groups_of_videos() -> None:
    """In the longest bucket that they fill; what one frame is left of is with the images."""
    found, left_out = clips(CLIPS, 16)
    assert found == {
        "fast.mp4": (1.414, 17),
        "film.mkv": (1.414, 9),
        "one.mp4": (1.0, 1),
        "same.mp4": (1.0, 17),
        "slow.mp4": (0.707, 9),
        "still.png": (1.0, 1),
    }
    assert left_out == ["short.mp4: it has 3 frames at the model's rate, too few for all frame_buckets of videos"]


def test_groups_of_videos_in_named_sizes() -> None:
    """The trainer looks a ratio up by its number among all ratios, and takes the size of that number."""
    found, left_out = clips("size_buckets = [[64, 64, 1], [96, 64, 9], [64, 96, 9]]", 16)
    assert found == {
        "fast.mp4": (64, 96, 9),
        "film.mkv": (64, 96, 9),
        "one.mp4": (64, 64, 1),
        "same.mp4": (64, 96, 9),
        "slow.mp4": (96, 64, 9),
        "still.png": (64, 64, 1),
    }
    assert left_out == ["short.mp4: it has 3 frames at the model's rate, too few for all size_buckets of videos"]


def test_models_of_images_leave_videos_out() -> None:
    found, left_out = clips(CLIPS, None)
    assert [*found] == ["still.png"]
    assert left_out[0] == "fast.mp4: it is a video, and the model is trained on images alone"
    assert len(left_out) == 6


def test_a_file_that_is_called_like_a_video() -> None:
    made_with_videos()
    Path("mixed/no.mp4").write_bytes(b"no video")
    Path("mixed/no.txt").write_text("a caption")
    (folder,) = read_settings(Path("dataset.toml"))
    told = [why for path, why in rows_of(folder, 16)[1] if path.name == "no.mp4"]
    assert told[0].startswith("diffusion-pipe leaves it out: it cannot be opened as a video (mixed")


def test_an_animation_is_refused() -> None:
    from PIL import Image

    made()
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    frames[0].save("pictures/moving.webp", save_all=True, append_images=frames[1:])
    Path("pictures/moving.txt").write_text("a caption")
    with pytest.raises(UsageError, match="is an animation"):
        rows()


def test_a_folder_that_is_not_there() -> None:
    made()
    picture(Path("other.png"), (64, 64))
    Path("dataset.toml").write_text("resolutions = [64]\n[[directory]]\npath = 'other.png'")
    with pytest.raises(UsageError, match="is no folder"):
        rows()
