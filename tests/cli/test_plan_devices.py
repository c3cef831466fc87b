"""``tvae plan --devices``: rows, halos and bytes by device, and what cannot be shared."""

from __future__ import annotations

import json
import re

import pytest
from program import invoke
from typer.testing import Result

from tvae.pipeline.jobs.devices import names


def call(*words: str) -> Result:
    return invoke(["plan", *words])


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "present_devices", lambda text: [f"cpu:{n}" for n in range(int(text))])


@pytest.mark.long
def test_rows_by_device(cpus: None) -> None:
    result = call("--shape", "128x200", "--devices", "3", "--side", "decode")
    assert result.exit_code == 0, result.stderr
    first, choice, *parts = result.stdout.splitlines()
    assert re.fullmatch(r"decode 1x16x25x16 over 3 devices: [\d.]+ [KM]iB pass between them", first)
    times = r"about [\d.]+ s with all rows on a device, [\d.]+ s and 4.5 s to start with rows on 3 devices"
    assert re.fullmatch(rf"  time     {times}; --split auto: items", choice)
    rows = [re.match(r"  cpu:(\d)    rows (\d+) to (\d+) of 25; halo up to \d+ rows, ", part) for part in parts]
    assert [one and one.groups() for one in rows] == [("0", "0", "7"), ("1", "8", "16"), ("2", "17", "24")]


@pytest.mark.slow
def test_bytes_are_those_of_the_plan(cpus: None) -> None:
    """What comes to one device goes from another: SD-like convolutions read one or two rows of each neighbour."""
    told = call("--shape", "128x200", "--devices", "2", "--json").stdout.splitlines()
    plans = [json.loads(line) for line in told]
    assert [(plan["side"], plan["device"], plan["rank"]) for plan in plans] == [
        (side, f"cpu:{rank}", rank) for side in ("encode", "decode") for rank in (0, 1)
    ]
    for plan in plans:
        assert plan["bands"] == ([[0, 96], [96, 200]] if plan["side"] == "encode" else [[0, 12], [12, 25]])
        assert 1 <= plan["halo_rows"] <= 2
        assert plan["received_bytes"] > plan["halo_rows"] * 4 * 128
        assert (plan["split"], plan["seconds_alone"] < plan["seconds_together"] + 4.5) == ("items", True)


@pytest.mark.slow
def test_a_long_clip_frame_by_frame(cpus: None) -> None:
    """What 900 frames gain pays for the start, what one of them gains does not."""
    for frames, split in ((1, "items"), (900, "rows")):
        result = call("--shape", f"640x640x{frames}", "--devices", "2", "--side", "decode")
        assert result.stdout.splitlines()[1].endswith(f"--split auto: {split}")


def test_too_few_rows(cpus: None) -> None:
    result = call("--shape", "64x8", "--devices", "2", "--side", "decode")
    assert result.stdout.startswith("decode 1x16x1x8: cannot be shared by rows; each of 2 devices would do all of it")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--devices", "0"], "leaves nothing to compute on"),
        (["--devices", "cpu,cpu"], "names cpu twice"),
        (["--devices", "999"], "more devices than there are here"),
        (["--devices", "1", "--device", "cpu"], "cannot be used together"),
    ],
)
def test_what_is_refused(words: list[str], told: str) -> None:
    result = call("--shape", "64x64", *words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("kinds", "told"), [("cuda:0,cpu", "of different kinds"), ("mps,mps:1", "of kind mps")])
def test_devices_without_a_way_to_one_another(kinds: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "present_devices", lambda text: text.split(","))
    result = call("--shape", "64x64", "--devices", kinds)
    assert (result.exit_code, told in result.stderr) == (2, True)
