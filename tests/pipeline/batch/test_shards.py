"""Parts of a job: each item is in one of them, by its path alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.batch.shards import Shard, shard_here, shard_of
from tvae.pipeline.errors import UsageError


@given(path=st.text(st.characters(exclude_categories=()), max_size=40), count=st.integers(1, 50))
def test_every_path_is_in_one_part(path: str, count: int) -> None:
    assert sum(Shard(number, count).takes(path) for number in range(1, count + 1)) == 1


def test_parts_are_about_alike_and_stay_what_they_are() -> None:
    paths = [f"sub{n % 7}/{n:06d}.jpg" for n in range(20_000)]
    parts = [[path for path in paths if Shard(number, 8).takes(path)] for number in range(1, 9)]
    assert all(2200 < len(part) < 2800 for part in parts)
    few = [path for path in paths[:100] if Shard(3, 8).takes(path)]
    assert few == [path for path in parts[2] if path in paths[:100]]
    assert [n for n in range(1, 9) if Shard(n, 8).takes("a.jpg")] == [3], "other versions and machines say the same"


@pytest.mark.parametrize(("text", "shard"), [("1/1", Shard(1, 1)), ("3/8", Shard(3, 8)), ("08/08", Shard(8, 8))])
def test_what_is_a_part(text: str, shard: Shard) -> None:
    assert shard_of(text) == shard


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "3/0", "-1/8", "a/b", "1/8/2", "1/ 8", "٣/8", "1/99999999"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        shard_of(text)


@pytest.mark.parametrize(
    ("environment", "shard"),
    [
        ({}, None),
        ({"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4"}, Shard(1, 4)),
        ({"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"}, Shard(4, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Shard(2, 2)),
        ({"RANK": "1"}, None),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None),
    ],
)
def test_what_surrounds_the_process(environment: dict[str, str], shard: Shard | None) -> None:
    assert shard_here(environment) == shard


def test_an_array_with_gaps_is_refused() -> None:
    """Of --array=1-3,7 the last task is beyond the count: it would do what all others do, too."""
    array = {"SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"}
    with pytest.raises(UsageError, match="pass --shard"):
        shard_here({**array, "SLURM_ARRAY_TASK_ID": "7"})
