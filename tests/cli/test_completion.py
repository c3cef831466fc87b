"""What a shell offers after TAB: asked as the shells' own scripts ask, and once by a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import invoke

from tvae import presets
from tvae.pipeline.bench.shapes import SHAPES


def offered(line: str) -> list[str]:
    """For the last word of a line, which may be empty, in bash."""
    words = line.split(" ")
    asked = {"_TVAE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = invoke([], env=asked, prog_name="tvae")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def test_commands_and_options() -> None:
    assert {"encode", "decode", "plan", "bench", "preset"} <= set(offered("tvae "))
    assert offered("tvae enc") == ["encode"]
    assert offered("tvae preset ") == ["list", "show", "export", "tune"]
    assert offered("tvae encode --pres") == ["--preset"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tvae encode --preset ", ["auto", *presets.names()]),
        ("tvae decode --preset au", ["auto"]),
        ("tvae preset show h", [name for name in presets.names() if name.startswith("h")]),
        ("tvae plan --dtype ", ["float32", "bfloat16", "float16"]),
        ("tvae roundtrip --device c", ["cuda", "cpu"]),
        ("tvae encode --fit c", ["contain", "cover"]),
        ("tvae bench vae --config ", [*SHAPES]),
        ("tvae decode --vae b", ["builtin"]),
    ],
)
def test_values(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_presets_of_the_user_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(presets.export("cpu"), encoding="utf-8")
    monkeypatch.setattr("tvae.presets.loader.user_folder", lambda: tmp_path)
    assert offered("tvae encode --preset m") == ["mine"]


@pytest.mark.parametrize("line", ["tvae encode ", "tvae decode lat", "tvae encode --vae ", "tvae encode -o ./"])
def test_paths_are_left_to_the_shell(line: str) -> None:
    assert offered(line) == []


@pytest.mark.skipif(sys.platform == "win32" or shutil.which("bash") is None, reason="needs bash")
def test_the_script_works_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "tvae"
    program.write_text(f"#!{sys.executable}\nfrom tvae.cli.app import main\nmain()\n", encoding="utf-8")
    program.chmod(0o755)
    script = (
        'eval "$(tvae --show-completion bash)" && complete -p tvae && '
        "COMP_WORDS=(tvae encode --preset rtx) COMP_CWORD=3 && _tvae_completion tvae && "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PATH": path, "SHELL": "/bin/bash"},
    )
    assert done.returncode == 0, done.stderr
    declared, *names = done.stdout.splitlines()
    assert declared == "complete -o default -F _tvae_completion tvae", "-o default: what finds nothing completes paths"
    assert names == ["rtx30", "rtx40", "rtx50"]
