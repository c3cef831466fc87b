"""``tvae comfyui``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

Tvae = Callable[..., Result]


def test_install(tvae: Tvae, tmp_path: Path) -> None:
    for name in ("custom_nodes", "models"):
        (tmp_path / name).mkdir()
    path = tmp_path / "custom_nodes" / "tvae_nodes.py"
    first = tvae("comfyui", "install", tmp_path)
    assert (first.exit_code, first.stdout) == (0, f"{path}\n")
    assert "restart ComfyUI" in first.stderr
    again = tvae("comfyui", "install", tmp_path)
    assert (again.exit_code, again.stdout, again.stderr) == (0, f"{path} (was there already)\n", "")
    told = tvae("comfyui", "install", tmp_path, "--json")
    assert json.loads(told.stdout) == {"type": "installed", "output": str(path), "written": False}


def test_refused_in_one_line(tvae: Tvae, tmp_path: Path) -> None:
    for arguments in (["install", tmp_path], ["install", tmp_path / "none"], ["install"], ["none-such"]):
        result = tvae("comfyui", *arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "install" in tvae("comfyui").stdout
