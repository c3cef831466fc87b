"""metadata.db of diffusion-pipe: what is read back, and whose it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tvae.pipeline.caches.shards import pickled_index
from tvae.pipeline.caches.shards.pickled_index import is_ours, read_index, read_note, write_index
from tvae.pipeline.errors import InputError

ORDER = [(0, 1), (2, 0), (0, 0)]
SHARDS = {0: [(0, 5), (5, 7)], 2: [(0, 9)]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".tvae-shards").mkdir()
    write_index(tmp_path, "0123", ORDER, SHARDS, "5.0")
    return tmp_path


def test_the_tables_are_those_that_the_trainer_makes(root: Path) -> None:
    with closing(sqlite3.connect(root / "metadata.db")) as file:
        made = dict(file.execute("SELECT name, sql FROM sqlite_master").fetchall())
        assert made == {
            "fingerprint": "CREATE TABLE fingerprint(value)",
            "items": "CREATE TABLE items(shard, shard_index)",
            "shard_0": "CREATE TABLE shard_0(offset, size)",
            "shard_2": "CREATE TABLE shard_2(offset, size)",
        }
        assert file.execute("SELECT * FROM items").fetchall() == ORDER
        assert file.execute("SELECT * FROM shard_0").fetchall() == SHARDS[0]
    assert read_index(root / "metadata.db") == ("0123", 3)
    assert not [path for path in root.iterdir() if path.name not in ("metadata.db", ".tvae-shards")]


def test_it_is_tvaes_until_the_trainer_changes_it(root: Path) -> None:
    assert is_ours(root)
    with closing(sqlite3.connect(root / "metadata.db")) as file:
        file.execute("INSERT INTO items VALUES(3, 0)")
        file.commit()
    assert not is_ours(root)
    assert read_index(root / "metadata.db") == ("0123", 4)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"fingerprint": 3}', b"\xff"])
def test_a_note_that_is_damaged_is_none(root: Path, content: bytes) -> None:
    (root / ".tvae-shards" / "table").write_bytes(content)
    assert read_note(root) is None
    assert not is_ours(root)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"x" * 100])
def test_what_is_no_index_is_an_input_error(root: Path, content: bytes) -> None:
    (root / "metadata.db").write_bytes(content)
    with pytest.raises(InputError, match="no index"):
        read_index(root / "metadata.db")


def test_a_view_without_end_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_index, "_STEPS", 3)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n"
    with closing(sqlite3.connect(root / "metadata.db")) as file:
        file.executescript(f"DROP TABLE items; CREATE VIEW items AS {endless}")
    with pytest.raises(InputError, match="interrupted"):
        read_index(root / "metadata.db")


@pytest.mark.parametrize("value", ["zeroblob(3000000)", "hex(zeroblob(900000))"])
def test_a_value_of_any_size_is_not_read(root: Path, value: str) -> None:
    with closing(sqlite3.connect(root / "metadata.db")) as file:
        file.executescript(f"DROP TABLE fingerprint; CREATE VIEW fingerprint AS SELECT {value} AS value")
    with pytest.raises(InputError, match="no index"):
        read_index(root / "metadata.db")
