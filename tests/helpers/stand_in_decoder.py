"""A package ``trainingsample`` whose pixels are no other decoder's: 255 less each value of Pillow's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

__all__ = ["stand_in_decoder", "turned_over", "without_decoder"]

_CODE = '''
import io
import numpy as np
from PIL import Image

__version__ = "{version}"

def imdecode_py(data, flag):
    """[H, W, 3] of a whole JPEG or TIFF, as stored: not turned, no profile applied."""
    assert type(data) is bytes and flag in (-1, 1)
    if {fails}:
        raise RuntimeError("cannot decode")
    image = Image.open(io.BytesIO(data))
    return 255 - np.asarray(image.convert("RGB"))
'''


def stand_in_decoder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "1.0", fails: bool = False
) -> None:
    """Installs it in a folder, for this process and those that it starts."""
    folder.mkdir(exist_ok=True)
    (folder / "trainingsample.py").write_text(_CODE.format(version=version, fails=fails))
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(folder)
    forget(monkeypatch)


def without_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not installed."""
    monkeypatch.setitem(sys.modules, "trainingsample", None)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded again, and what was loaded before comes back at the end."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "trainingsample", None)
    del sys.modules["trainingsample"]


def turned_over(path: Path) -> np.ndarray:
    """uint8 [H, W, 3] that it gives of a file."""
    with Image.open(path) as image:
        return 255 - np.asarray(image.convert("RGB"))
