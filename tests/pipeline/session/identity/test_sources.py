"""Which edits of source files give a model another digest, each read in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VAE = """
import torch
from torch import nn
from helpers.scale import scaled
import beside

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def encode(self, x):
        return beside.shifted(scaled(self.conv(x)))
"""
DIGEST = """
from project.vae import Model
from tvae.pipeline.session.identity.identity import identity_of
identity = identity_of(Model())
print(identity.digest if identity.portable else identity.why)
"""


def digest(folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, env=environment, check=False)
    assert len(run.stdout.split()) == 1, run.stderr + run.stdout
    return run.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "project/__init__.py": "",
        "project/vae.py": VAE,
        "project/unused.py": "x = 1\n",
        "helpers/__init__.py": "",
        "helpers/scale.py": "def scaled(x):\n    return x * 2\n",
        "beside.py": "def shifted(x):\n    return x + 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.long
def test_files_of_the_project_and_of_what_it_imports_count(project: Path) -> None:
    digests = [digest(project)]
    assert digest(project) == digests[0]
    for name in ("project/vae.py", "helpers/scale.py", "beside.py"):
        with (project / name).open("a") as file:
            file.write("# edited\n")
        digests.append(digest(project))
    assert len({*digests}) == 4
