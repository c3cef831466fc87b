"""What is seen at a glance of a machine, on machines that are made up."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tvae import presets
from tvae.kernels import registry, triton_needs
from tvae.pipeline import device as hardware

Machine = pytest.MonkeyPatch
CARD = torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch: Machine, tmp_path: Path) -> Machine:
    """A machine that has all that Triton needs."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(triton_needs, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (130 << 30, 140 << 30))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(triton_needs.shutil, "which", lambda name: f"/bin/{name}" if name == "gcc" else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


LACKING: dict[str, Callable[[Machine], Any]] = {
    "triton": lambda machine: machine.setattr(triton_needs, "find_spec", lambda _name: None),
    "card": lambda machine: machine.setattr(torch.cuda, "is_available", lambda: False),
    "nvidia": lambda machine: machine.setattr(torch.version, "hip", "6.4"),
    "ampere": lambda machine: machine.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5)),
    "compiler": lambda machine: machine.setattr(triton_needs.shutil, "which", lambda _name: None),
    "named compiler": lambda machine: machine.setenv("CC", "mycc"),
    "headers": lambda machine: machine.setattr(sysconfig, "get_path", lambda *_: "nowhere"),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_is_not_in_sight(what: str, machine: Machine) -> None:
    assert triton_needs.all_there()
    LACKING[what](machine)
    assert not triton_needs.all_there()


def test_triton_has_its_own_compiler_on_windows(machine: Machine) -> None:
    LACKING["compiler"](machine)
    machine.setattr(sys, "platform", "win32")
    assert triton_needs.all_there()


def test_the_layout_follows_from_a_glance_and_in_doubt_from_starting_triton(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """A launcher that is cached needs no compiler. Without Triton PyTorch's operations want the other layout."""
    reasons: list[str | None] = []
    machine.setattr(registry, "why_missing", lambda _level: reasons.pop())
    assert hardware.choose_preset("auto", CARD) == presets.load("h200")
    LACKING["compiler"](machine)
    reasons.append(None)
    assert hardware.choose_preset("auto", CARD).memory_layout == "channels_last"
    reasons.append("it does not start")
    with caplog.at_level("INFO", "tvae"):
        assert hardware.choose_preset("auto", CARD).memory_layout == "contiguous"
    assert caplog.messages == ["no kernels of level triton (it does not start): PyTorch's own, NCHW"]
