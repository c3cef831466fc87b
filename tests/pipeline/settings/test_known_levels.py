"""Operations and levels that a preset names and that there are not: told with the file, before anything is done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tvae import presets
from tvae.pipeline.device import choose_preset
from tvae.pipeline.errors import UsageError
from tvae.pipeline.settings.known_levels import with_known_levels
from tvae.presets.loader import BUILT_IN

LEVEL = 'default = "triton"'


@pytest.mark.parametrize("name", BUILT_IN)
def test_those_that_are_shipped(name: str) -> None:
    assert with_known_levels(presets.load(name)) == presets.load(name)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ('default = "trition"', "levels.default must be one of native, .*'trition'; did you mean 'triton'"),
        (f"{LEVEL}\nnorm_acts = 'cuda'", "'norm_acts'; did you mean 'norm_act'.*group_stats"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: str, reason: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(presets.export("h200").replace(LEVEL, wrong), encoding="utf-8")
    with pytest.raises(ValueError, match=reason):
        with_known_levels(presets.load(path))
    with pytest.raises(UsageError, match=reason) as error:
        choose_preset(str(path), torch.device("cpu"))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_preset_is_checked_without_torch() -> None:
    code = (
        "import sys; from tvae import presets; from tvae.pipeline.settings.known_levels import with_known_levels\n"
        "with_known_levels(presets.load('h200')); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
