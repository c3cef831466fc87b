"""Public VAEs are known by name, by the sha256 of their published files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tvae.pipeline.files.tensor_header import Header, TensorSpec
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.own_classes import class_named
from tvae.pipeline.models.published import published_name
from tvae.pipeline.models.single_file import recognise

LISTED = [
    (digest, name)
    for family in FAMILIES.values()
    for files in (family.files, *(kin.files for kin in family.kin))
    for digest, name in files.items()
]


@pytest.mark.parametrize(
    ("digest", "name"),
    [
        ("1b909373b28f2137098b0fd9dbc6f97f8410854f31f84ddc9fa04b077b0ace2c", "SDXL (fp16 fix)"),
        ("1598f3d24932bcfe6634e8b618ea1e30ab1d57f5aad13a6d2de446d2199f2341", "SDXL"),
        ("afc8e28272cd15db3919bacdb6918ce9c1ed22e96cb12c4d5ed0fba823529e38", "FLUX.1"),
        ("0" * 64, None),
        ("", None),
    ],
)
def test_names(digest: str, name: str | None) -> None:
    assert published_name(digest) == name


def test_every_file_is_listed_once_and_has_a_name() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) and name.strip() for digest, name in LISTED)
    assert max(Counter(digest for digest, _ in LISTED).values()) == 1
    assert all(published_name(digest) == name for digest, name in LISTED)


def test_a_file_that_two_classes_may_have_is_told_by_its_sha256() -> None:
    """HunyuanVideo 1.5's VAE has the tensors of HunyuanImage's refiner, which computes with them in another way."""
    (digest,) = next(kin.files for kin in FAMILIES["AutoencoderKLHunyuanVideo15"].kin if kin.key == "hunyuanvideo1.5")
    build: Any = class_named("AutoencoderKLHunyuanVideo15")
    with torch.device("meta"):
        weights = build().state_dict()
    header = Header({name: TensorSpec("F16", tuple(value.shape)) for name, value in weights.items()}, {})
    found = recognise(header, Path("x"), sha256=lambda: digest)
    assert (found.class_name, found.why) == (
        "AutoencoderKLHunyuanVideo15",
        "by its sha256: HunyuanVideo 1.5, float16",
    )
