"""``import tvae``: the public names, and nothing else until one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tvae
import tvae.pipeline


def test_the_names_are_the_pipelines() -> None:
    assert tvae.__all__ == tvae.pipeline.__all__
    for name in tvae.__all__:
        assert getattr(tvae, name) is getattr(tvae.pipeline, name)


def test_a_star_import_gives_them() -> None:
    names: dict[str, object] = {}
    exec("from tvae import *", names)
    assert {*tvae.__all__} <= {*names}
    assert names["TiledVAE"] is tvae.pipeline.TiledVAE


def test_what_is_no_name_is_said_so() -> None:
    with pytest.raises(AttributeError, match="module 'tvae' has no attribute 'TiledVea'"):
        tvae.TiledVea  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    program = "import sys, tvae; print(*sorted({'torch', 'numpy', 'av', 'tvae.pipeline', 'tvae.cli'} & {*sys.modules}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
