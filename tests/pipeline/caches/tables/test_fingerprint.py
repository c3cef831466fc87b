"""The order of records and their fingerprint, as diffusion-pipe itself gave them over the same pictures, in Python 3.11
with two versions of the library ``datasets``. The table's fingerprint covers compiled code, so other versions of Python
have others."""

from __future__ import annotations

import errno
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from data_sets import BUCKETS, CLIPS, made, made_with_videos

from tvae.pipeline.caches.tables import fingerprint
from tvae.pipeline.caches.tables.fingerprint import Table, in_order, library_version, table_of
from tvae.pipeline.caches.tables.rows import Row, buckets_of, rows_of
from tvae.pipeline.caches.tables.settings import read_settings
from tvae.pipeline.errors import UsageError

NAMED = (
    'size_buckets = [[64, 64, 1], [96, 50, 1], [64, 96, 9]]\ncaption_prefix = "in oil, "\nshuffle_metadata = false\n'
)
WHOLE = "resolutions = [80]\nenable_ar_bucket = true\nar_buckets = [1, 2]\n"

ORDER = {
    "cache_0.707x48x80x1": ["b.png"],
    "cache_0.707x80x112x1": ["b.png"],
    "cache_1.000x64x64x1": ["e.png", "c.png"],
    "cache_1.000x96x96x1": ["e.png", "c.png"],
    "cache_1.414x112x80x1": ["a.png", "größe.jpg"],
    "cache_1.414x80x48x1": ["a.png", "größe.jpg"],
    "cache_64x64x1": ["b.png", "c.png", "e.png"],
    "cache_96x50x1": ["a.png", "größe.jpg"],
    "cache_1.000x80x80x1": ["e.png", "größe.jpg", "b.png", "c.png"],
    "cache_2.000x112x64x1": ["a.png"],
}
FINGERPRINTS = {
    "5.2.0": {
        "cache_0.707x48x80x1": "3b0a3f063115d421",
        "cache_0.707x80x112x1": "3cdbcea50a413fb5",
        "cache_1.000x64x64x1": "be30587fbf61ac18",
        "cache_1.000x96x96x1": "aaabc6509e69bc73",
        "cache_1.414x112x80x1": "2dbd3babb9039724",
        "cache_1.414x80x48x1": "37564cdb60262761",
        "cache_64x64x1": "fc1305e6214d2ae6",
        "cache_96x50x1": "c7ed55cabd762b28",
        "cache_1.000x80x80x1": "ba0ae6ea4242d95e",
        "cache_2.000x112x64x1": "d189e28f533713ec",
    },
    "4.0.0": {
        "cache_0.707x48x80x1": "2d2fa592f6f73d78",
        "cache_0.707x80x112x1": "80736764075734e4",
        "cache_1.000x64x64x1": "c7e396e1ee34e31b",
        "cache_1.000x96x96x1": "5dd10159150daee6",
        "cache_1.414x112x80x1": "8e605b7d8aba3dbf",
        "cache_1.414x80x48x1": "5dc20a533e591e17",
        "cache_64x64x1": "048004b4bb2b8eb0",
        "cache_96x50x1": "54e75f7b40dcde88",
        "cache_1.000x80x80x1": "f01885c2ffd9d37e",
        "cache_2.000x112x64x1": "ab8d8819d2cfe66c",
    },
}
needs_library = pytest.mark.skipif(find_spec("datasets") is None, reason="needs the library datasets")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, Table]:
    monkeypatch.chdir(tmp_path)
    (folder,) = read_settings(made(request.param))
    listed, _ = rows_of(folder)
    rows = in_order(folder.path, listed) if folder.shuffles else [row for row in listed if row is not None]
    buckets = buckets_of(folder, [*dict.fromkeys(row.key for row in rows)], 16)
    return {one.folder: table_of(one, [row for row in rows if row.key == one.key]) for one in buckets}


@needs_library
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("tables", [BUCKETS, NAMED, WHOLE], indirect=True, ids=["ratios", "sizes", "whole"])
def test_tables_are_the_trainers(tables: dict[str, Table]) -> None:
    assert {name: [row.path.name for row in table.rows] for name, table in tables.items()} == {
        name: ORDER[name] for name in tables
    }
    known = FINGERPRINTS.get(library_version()) if sys.version_info[:2] == (3, 11) else None
    found = {name: table.fingerprint for name, table in tables.items()}
    assert len({*found.values()}) == len(found)
    if known is not None:
        assert found == {name: known[name] for name in found}


OF_VIDEOS = {
    "cache_0.707x48x80x9": "0f3ee0af66e7c045",
    "cache_0.707x80x112x9": "ecdb77a0c4787a33",
    "cache_1.000x64x64x1": "c39cd2d3083ea4dd",
    "cache_1.000x64x64x17": "4042f828857323a1",
    "cache_1.000x96x96x1": "446ad7cd7451deb6",
    "cache_1.000x96x96x17": "7e0c0b5c0b44f676",
    "cache_1.414x112x80x17": "8c2f347a9b772896",
    "cache_1.414x112x80x9": "7b47ac2bb457d28a",
    "cache_1.414x80x48x17": "a2909901e4e964f7",
    "cache_1.414x80x48x9": "fcac5f2f3a3d722e",
}
OF_NAMED_SIZES = {
    "cache_64x64x1": "73fc3545d548d554",
    "cache_64x96x9": "e6ba7a7119b305e6",
    "cache_96x64x9": "aa7b2d26b976978e",
}


@needs_library
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the table's fingerprint covers compiled code")
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [(CLIPS, OF_VIDEOS), ("size_buckets = [[64, 64, 1], [96, 64, 9], [64, 96, 9]]", OF_NAMED_SIZES)],
    ids=["ratios", "sizes"],
)
def test_tables_with_videos_are_the_trainers(
    settings: str, wanted: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library_version() != "4.0.0":
        pytest.skip("the trainer's own fingerprints are of version 4.0.0")
    monkeypatch.chdir(tmp_path)
    (folder,) = read_settings(made_with_videos(settings))
    rows = in_order(folder.path, rows_of(folder, 16)[0])
    buckets = buckets_of(folder, [*dict.fromkeys(row.key for row in rows)], 16)
    tables = {one.folder: table_of(one, [row for row in rows if row.key == one.key]) for one in buckets}
    assert {name: table.fingerprint for name, table in tables.items()} == wanted


@needs_library
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_path_is_the_same_with_dots_and_slashes() -> None:
    rows = [Row(Path(str(n)), str(n), (), (1.0, 1)) for n in range(30)]
    assert in_order("./pictures/", rows) == in_order("pictures", rows) != in_order("../pictures", rows)


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the library datasets is there")
def test_without_the_library_it_says_where_it_is() -> None:
    with pytest.raises(UsageError, match="in diffusion-pipe's own environment"):
        library_version()


def test_no_room_for_temporary_files() -> None:
    class Full:
        def save_to_disk(self, folder: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match="folder for temporary files: No space left on device; make room there"):
        fingerprint._stored(None, Full())
