"""What a model's functions import when they are called is part of the model, whichever way it is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.identity.module_identity import identity_of

IMPORTS = {
    "from . import numbers": "numbers.GAIN",
    "from . import numbers as n": "n.GAIN",
    "from .numbers import GAIN": "GAIN",
    "from .numbers import GAIN as g": "g",
    "from .numbers import other, GAIN": "GAIN + 0 * other",
    "from .numbers import gain": "gain()",
    "from ..imported_inside import numbers": "numbers.GAIN",
    "import imported_inside.numbers": "imported_inside.numbers.GAIN",
    "import imported_inside.numbers as n": "n.GAIN",
    "from imported_inside.numbers import GAIN": "GAIN",
    "from .deep import more": "more.taken()",
    "from .deep.more import taken": "taken()",
    "from importlib import import_module": "import_module('.numbers', __package__).GAIN",
    "import importlib": "importlib.import_module('imported_inside.numbers').gain()",
    "import importlib as i": "i.import_module(WHERE).GAIN",
    "import sys": "sys.modules['imported_inside.numbers'].GAIN",
    "n = 'GAIN'": "getattr(__import__('imported_inside.numbers', fromlist=[n]), n)",
}
MODEL = """
from torch import nn

WHERE = "imported_inside.numbers"

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def encode(self, x):
        {line}
        return self.conv(x) * ({taken})

    decode = encode

class Inner(Model):
    def encode(self, x):
        def found():
            {line}
            return {taken}
        return self.conv(x) * found()
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = tmp_path / "imported_inside"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "deep" / "__init__.py").touch()
    (package / "numbers.py").write_text("GAIN = 1.0\nother = 2.0\ndef gain():\n    return GAIN\n")
    (package / "deep" / "more.py").write_text("def taken():\n    from ..numbers import GAIN\n    return GAIN\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "imported_inside"]:
        del sys.modules[name]


def made(tmp_path: Path, line: str) -> ModuleType:
    package = tmp_path / "imported_inside"
    (package / "model.py").write_text(MODEL.format(line=line, taken=IMPORTS[line]))
    importlib.invalidate_caches()
    return importlib.import_module("imported_inside.model")


@pytest.mark.parametrize("name", ["Model", "Inner"])
@pytest.mark.parametrize("line", [line for line in IMPORTS if ".." not in line])
def test_a_change_is_seen(line: str, name: str, tmp_path: Path) -> None:
    module = made(tmp_path, line)
    importlib.import_module("imported_inside.deep.more")
    numbers = importlib.import_module("imported_inside.numbers")
    model: nn.Module = getattr(module, name)()
    before = identity_of(model)
    assert before.unchanged()
    assert before.portable
    numbers.other = 3.0  # type: ignore[attr-defined]
    assert before.unchanged() == ("import other" not in line)
    numbers.GAIN = 2.0  # type: ignore[attr-defined]
    assert not before.unchanged()
    assert identity_of(model).digest != before.digest


def test_more_dots_than_packages_are_left_to_the_call(tmp_path: Path) -> None:
    module = made(tmp_path, "from ..imported_inside import numbers")
    assert identity_of(module.Model()).unchanged()


@torch.no_grad()
def test_a_module_that_the_first_call_imports(tmp_path: Path) -> None:
    module = made(tmp_path, "from .numbers import gain")
    model: nn.Module = module.Model()
    tiled = TiledVAE(model, "cpu", strip=3)
    assert "imported_inside.numbers" not in sys.modules
    for gain in (1.0, 1.0, 2.5, 0.5):
        if gain != 1.0:
            sys.modules["imported_inside.numbers"].GAIN = gain  # type: ignore[attr-defined]
        x = torch.randn(1, 3, 9, 8)
        want: Tensor = model.conv(x) * gain  # type: ignore[operator]
        assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-6


@torch.no_grad()
def test_a_function_of_a_library_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_inside" / "model.py").write_text(
        MODEL.format(line="import torch.nn.functional as F", taken="F.softplus(x).mean(1, keepdim=True)")
    )
    importlib.invalidate_caches()
    model: nn.Module = importlib.import_module("imported_inside.model").Model()
    before = identity_of(model)
    monkeypatch.setattr("torch.nn.functional.softplus", lambda x: x * 2)
    assert not before.unchanged()
    assert identity_of(model).digest != before.digest
