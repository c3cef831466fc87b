"""The installed program, run as a user runs it, with the built-in VAE."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

Tvae = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tvae() -> Tvae:
    """Runs ``tvae ARGUMENTS``; ``code`` is the exit code it must have."""

    def run(*arguments: object, code: int = 0, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tvae.cli", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def demux() -> Callable[[Path], dict[str, Any]]:
    """What PyAV finds in a file, independent of our reader."""

    def read(path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {"times": [], "sound": []}
        with av.open(str(path)) as container:
            video = container.streams.video[0]
            for frame in container.decode(video):
                found["times"].append(frame.pts * frame.time_base)
                found["size"], found["rotation"] = (frame.width, frame.height), frame.rotation
        with av.open(str(path)) as container:
            for stream in container.streams.audio[:1]:
                assert stream.time_base is not None
                found["codec"], found["channels"] = stream.codec_context.name, stream.channels
                for packet in container.demux(stream):
                    if packet.pts is not None:
                        found["sound"].append((Fraction(packet.pts) * stream.time_base, bytes(packet)))
        return found

    return read
