"""What ``--devices`` takes, and what it refuses in one line."""

from __future__ import annotations

import pytest
import torch

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.devices.names import check_devices, present_devices


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cuda", "xpu", "mps"):
        if hasattr(torch, kind):
            monkeypatch.setattr(getattr(torch, kind), "is_available", lambda: False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", ["cuda:0", "cuda:1", "cuda:2"]),
        ("1", ["cuda:0"]),
        ("02", ["cuda:0", "cuda:1"]),
        ("cuda:2,cuda:0", ["cuda:2", "cuda:0"]),
        (" cuda:1 , cpu ", ["cuda:1", "cpu"]),
        ("cuda,cuda:1", ["cuda:0", "cuda:1"]),
    ],
)
def test_what_there_is(text: str, found: list[str], gpus: None) -> None:
    assert present_devices(text) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4", "--devices 4 are more devices than there are here: cuda:0, cuda:1, cuda:2"),
        ("99999999999", "more devices than there are"),
        ("cuda:0,cuda:3", "there is no 'cuda:3' here, only cuda:0, cuda:1, cuda:2, cpu"),
        ("cuda,cuda:0", "names cuda:0 twice"),
        ("cpu:0,cpu", "names cpu twice"),
        ("cuda:0,gpu", "'gpu' is no device"),
        ("cuda:0,meta", "'meta' is a device of no kind that tvae uses: cuda, xpu, mps, cpu"),
        ("cuda:-1", "is no device"),
        ("-2", "is no device"),
    ],
)
def test_what_there_is_not(text: str, told: str, gpus: None) -> None:
    with pytest.raises(UsageError) as refused:
        present_devices(text)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_a_gpu(no_gpu: None) -> None:
    assert present_devices("1") == ["cpu"]
    with pytest.raises(UsageError, match="--devices 2 are more devices than there are here: cpu"):
        present_devices("2")
    with pytest.raises(UsageError, match=r"there is no 'cuda:0' here, only cpu"):
        present_devices("cpu,cuda:0")


@pytest.mark.parametrize("text", ["0", "000", "", ",", "cuda:0,", "cuda:0,cuda:0", "cpu, cpu"])
def test_a_job_refuses_at_once(text: str) -> None:
    with pytest.raises(UsageError, match="--devices"):
        Job("encode", ("a.png",), devices=text)


def test_two_ways_to_say_it() -> None:
    with pytest.raises(UsageError, match="--device and --devices cannot be used together"):
        Job("encode", ("a.png",), device="cpu", devices="2")
    assert check_devices("4") == 4
    assert check_devices("cuda:1, cuda:0") == ["cuda:1", "cuda:0"]
