"""What is seen at a glance of a machine, on machines that are made up."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from tvae import presets
from tvae.kernels import registry, triton_needs, why_absent
from tvae.pipeline import hardware


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
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


def test_a_machine_that_has_it_all(card: pytest.MonkeyPatch) -> None:
    assert triton_needs.unmet() is None
    assert why_absent("triton") is None


def test_what_is_missing(card: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").unlink()
    assert triton_needs.unmet() == f"Triton needs Python's headers, and there is no {tmp_path / 'Python.h'}"
    card.setenv("CC", "mycc")
    assert triton_needs.unmet() == "Triton needs a C compiler, and there is no mycc"
    card.delenv("CC")
    card.setattr(triton_needs.shutil, "which", lambda _name: None)
    assert triton_needs.unmet() == "Triton needs a C compiler, and there is no gcc or clang"
    card.setattr(sys, "platform", "win32")
    assert triton_needs.unmet() is None
    card.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert triton_needs.unmet() == "the GPU's compute capability is below 8.0"
    card.setattr(torch.cuda, "is_available", lambda: False)
    assert triton_needs.unmet() == "no CUDA GPU"
    card.setattr(triton_needs, "find_spec", lambda _name: None)
    assert triton_needs.unmet() == "triton is not installed"


def test_the_layout_follows_from_a_glance(card: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Triton is neither loaded nor started for it; without it PyTorch's operations want the other layout."""

    def load(*_: Any) -> Any:
        raise AssertionError("loaded")

    card.setattr(registry, "import_module", load)
    assert hardware.choose_preset("auto", torch.device("cuda", 0)) == presets.load("h200")
    card.setattr(triton_needs, "find_spec", lambda _name: None)
    with caplog.at_level("INFO", "tvae"):
        assert hardware.choose_preset("auto", torch.device("cuda", 0)).memory_layout == "contiguous"
    assert caplog.messages == ["no kernels of level triton (triton is not installed): PyTorch's own, NCHW"]
