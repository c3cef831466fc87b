"""A digest is the same in every process, and differs from another model's in all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MODEL = """
import sys; sys.path[:0] = {path!r}
from tiny_vaes import TINY
from tvae.pipeline.session.identity.identity import identity_of
{before}
model = TINY["AutoencoderKL"].build()
{after}
found = identity_of(model)
print(found.digest, found.portable)
"""
HELPERS = str(Path(__file__).resolve().parents[3] / "helpers")


def started(program: str, seed: int, *path: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([HELPERS, *path])}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)


def printed(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate()
    assert process.returncode == 0
    return out.strip()


USERS_OWN = {
    "vae.py": """
import torch
from torch import nn
from blocks import Block
class Vae(nn.Module):
    KINDS = {"one", "two", "three", Block, nn.SiLU}
    def __init__(self):
        super().__init__()
        self.block, self.names = Block(), {f"name{n}" for n in range(20)}
        self.notes = {"act": torch.nn.functional.silu, "more": (self.decode, lambda x: x in {"a", "b", "c", "d"})}
        self.register_forward_hook(lambda part, args, out: self.notes["act"](out))
    def encode(self, x): return self.block(x)
    def decode(self, z): return self.block(z) if self.KINDS and self.names else self.notes
""",
    "blocks.py": """
from torch import nn
SCALE = 2.0
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
    def forward(self, x): return self.conv(x) * SCALE
""",
}
OWN = """
from vae import Vae
from tvae.pipeline.session.identity.identity import identity_of
found = identity_of(Vae())
print(found.digest, found.portable)
"""


def written(folder: Path, change: Callable[[str], str] = str) -> str:
    folder.mkdir()
    for name, text in USERS_OWN.items():
        (folder / name).write_text(change(text) if name == "blocks.py" else text)
    return str(folder)


@pytest.mark.slow
def test_a_model_of_ones_own_in_several_processes(tmp_path: Path) -> None:
    here, elsewhere = written(tmp_path / "a"), written(tmp_path / "b")
    edited = written(tmp_path / "c", lambda text: text + "\ndef unused(): return 5\n")
    first, *others = map(printed, [started(OWN, seed, p) for seed, p in enumerate([here, elsewhere, edited])])
    assert first.endswith("True")
    assert others[0] == first
    assert others[1] != first  # what a file that is imported may do is not judged


@pytest.mark.slow
def test_a_model_of_no_file_is_told_by_its_code() -> None:
    text = USERS_OWN["blocks.py"] + "from tvae.pipeline.session.identity.identity import identity_of\n"
    text += "found = identity_of(Block())\nprint(found.digest, found.portable)\n"
    same, again, other = [printed(started(t, 6, "")) for t in (text, text, text.replace("2.0", "3.0"))]
    assert same == again != other
    assert same.endswith("True")


@pytest.mark.slow
def test_a_diffusers_model_in_three_processes() -> None:
    plain = MODEL.format(path=[], before="", after="")
    first, *others = [printed(started(plain, seed)) for seed in (0, 1, 2)]
    assert others == [first, first]
    for before, after in [
        ("", "model.decoder.conv_norm_out.eps = 1e-5"),
        ("import diffusers.models.resnet as r; r.ResnetBlock2D.forward = lambda self, x, temb=None: x", ""),
        ("TINY['AutoencoderKL'].config['norm_num_groups'] = 1", ""),
    ]:
        assert printed(started(MODEL.format(path=[], before=before, after=after), 3)) != first
