import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.media.packet_times import PacketTime, TimeRuns, expand

ticks = st.one_of(st.none(), st.integers(-50, 50))
times = st.lists(st.builds(PacketTime, ticks, ticks, st.integers(0, 3)), max_size=30)


@given(times)
def test_runs_give_back_every_time(given_times: list[PacketTime]) -> None:
    collected = TimeRuns()
    for time in given_times:
        collected.add(time)
    assert list(expand(json.loads(json.dumps(collected.runs)))) == given_times


def test_an_hour_of_steady_packets_is_one_run() -> None:
    collected = TimeRuns()
    for index in range(168_750):
        collected.add(PacketTime(1024 * index - 1024, 1024 * index - 1024, 1024))
    assert collected.runs == [[168_750, -1024, -1024, 1024]]


@pytest.mark.parametrize("runs", [[[None, 0, 0, 1]], [[1, 2]], [["x", 0, 0, 1]], [7]])
def test_other_things_are_not_runs(runs: list) -> None:
    with pytest.raises((TypeError, ValueError)):
        list(expand(runs))
