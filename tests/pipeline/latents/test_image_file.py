"""Latents of one image: written whole or not at all, readable by anything, and checked when read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.files.tensor_header import read_header, read_texts
from tvae.pipeline.latents import (
    LatentsMeta,
    PosteriorRecord,
    SpaceRecord,
    check_vae,
    is_latents,
    latents_done,
    open_latents,
    write_image_latents,
)

LATENTS = torch.arange(24, dtype=torch.float32).reshape(4, 2, 3)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_there_and_back(tmp_path: Path, image_meta: LatentsMeta, dtype: torch.dtype) -> None:
    path = tmp_path / "deep" / "ä photo.jpg.safetensors"
    latents = torch.randn(4, 2, 3).to(dtype)
    write_image_latents(path, {"latents": latents}, image_meta)
    reader = open_latents(path)
    (part,) = reader
    assert reader.meta == image_meta
    assert (len(reader), reader.frames, reader.streams, part.pts) == (1, 1, None, ())
    assert part.tensors["latents"].dtype == dtype
    assert torch.equal(part.tensors["latents"], latents)
    assert names_in(path.parent) == [path.name]


def test_other_tools_read_it(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    with safe_open(path, framework="numpy") as file:
        assert list(file.keys()) == ["latents"]
        assert (file.get_tensor("latents") == LATENTS.numpy()).all()
        assert file.metadata()["format"] == "tvae"


WRITE = """
import sys
from pathlib import Path
import torch
from tvae.pipeline.latents import LatentsMeta, write_image_latents
meta = LatentsMeta.from_json(json.loads(sys.argv[2]))
write_image_latents(Path(sys.argv[1]), {"mean": torch.ones(4, 2, 3), "logvar": torch.zeros(4, 2, 3)}, meta)
"""


@pytest.mark.long
def test_equal_work_gives_equal_bytes(tmp_path: Path, image_meta: LatentsMeta) -> None:
    """In every process: safetensors' own writer orders texts at random."""
    meta = json.dumps(replace(image_meta, posterior=PosteriorRecord("moments")).to_json())
    for seed in ("1", "2"):
        command = [sys.executable, "-c", "import json\n" + WRITE, str(tmp_path / seed), meta]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": seed})
    assert len({(tmp_path / seed).read_bytes() for seed in ("1", "2")}) == 1


def test_moments_that_share_memory(tmp_path: Path, image_meta: LatentsMeta) -> None:
    meta = replace(image_meta, posterior=PosteriorRecord("moments"))
    mean, logvar = torch.randn(1, 8, 2, 3).chunk(2, dim=1)
    write_image_latents(tmp_path / "a.safetensors", {"mean": mean[0], "logvar": logvar[0]}, meta)
    (part,) = open_latents(tmp_path / "a.safetensors")
    assert torch.equal(part.tensors["mean"], mean[0])
    assert torch.equal(part.tensors["logvar"], logvar[0])


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 1, 2, 3)])
def test_image_of_a_video_vae_may_keep_its_time_axis(
    tmp_path: Path, image_meta: LatentsMeta, shape: tuple[int, ...]
) -> None:
    meta = replace(image_meta, vae=replace(image_meta.vae, temporal_factor=4))
    write_image_latents(tmp_path / "a.safetensors", {"latents": LATENTS.view(shape)}, meta)
    (part,) = open_latents(tmp_path / "a.safetensors")
    assert part.tensors["latents"].shape == shape


def test_model_space_may_fold_patches(tmp_path: Path, image_meta: LatentsMeta) -> None:
    geometry = replace(image_meta.geometry, pad=(0, 0, 11, 3))  # 32x16: latents 4x2
    meta = replace(image_meta, geometry=geometry, space=SpaceRecord("model", {"patch": 2}))
    write_image_latents(tmp_path / "a.safetensors", {"latents": torch.randn(16, 1, 2)}, meta)
    assert open_latents(tmp_path / "a.safetensors").meta == meta


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_never_written(tmp_path: Path, image_meta: LatentsMeta, bad: float) -> None:
    latents = LATENTS.clone()
    latents[1, 1, 1] = bad
    with pytest.raises(InputError, match=r"photo\.jpg.*1 of 24 values of 'latents' are not finite"):
        write_image_latents(tmp_path / "a.safetensors", {"latents": latents}, image_meta)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "tensors",
    [
        {"mean": LATENTS},
        {"latents": LATENTS[:3]},
        {"latents": LATENTS[:, :1]},
        {"latents": LATENTS.unsqueeze(1)},
        {"latents": LATENTS.long()},
        {},
    ],
)
def test_tensors_that_do_not_fit_are_a_mistake(
    tmp_path: Path, image_meta: LatentsMeta, tensors: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"expected|floating"):
        write_image_latents(tmp_path / "a.safetensors", tensors, image_meta)
    assert names_in(tmp_path) == []


def test_a_foreign_file_is_not_replaced(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"lora": torch.zeros(3)}, path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not latents of tvae"):
        write_image_latents(path, {"latents": LATENTS}, image_meta)
    assert path.read_bytes() == before
    write_image_latents(path, {"latents": LATENTS}, image_meta, overwrite=True)
    write_image_latents(path, {"latents": LATENTS + 1}, image_meta)  # now it is ours
    (part,) = open_latents(path)
    assert torch.equal(part.tensors["latents"], LATENTS + 1)


def test_a_folder_that_cannot_be(tmp_path: Path, image_meta: LatentsMeta) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*a\.safetensors: File exists"):
        write_image_latents(tmp_path / "file" / "a.safetensors", {"latents": LATENTS}, image_meta)


def test_every_truncation_is_noticed_on_opening(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    whole = path.read_bytes()
    for size in [0, 4, 8, 100, len(whole) - 96, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"a\.safetensors") as error:
            open_latents(path)
        assert "\n" not in str(error.value)
    path.write_bytes(whole + b"x")
    with pytest.raises(InputError, match="damaged"):
        open_latents(path)


def test_files_of_others(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(InputError, match="No such file"):
        open_latents(path)
    path.write_text("this is a text, not a safetensors file, whatever its name says")
    with pytest.raises(InputError, match="not a whole safetensors file"):
        open_latents(path)
    save_file({"latents": LATENTS}, path)
    with pytest.raises(InputError, match="format=tvae"):
        open_latents(path)
    save_file({"latents": LATENTS}, path, metadata={"format": "tvae", "version": "1", "vae": "{"})
    with pytest.raises(InputError, match=r"metadata\.vae is not JSON"):
        open_latents(path)


def test_values_and_shapes_are_checked_on_reading(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]
    save_file({"latents": LATENTS * float("nan")}, path, metadata)
    with pytest.raises(InputError, match=r"a\.safetensors.*24 of 24 values of 'latents' are not finite"):
        list(open_latents(path))
    save_file({"latents": torch.zeros(4, 3, 3)}, path, metadata)
    with pytest.raises(InputError, match="damaged latents"):
        list(open_latents(path))


def test_done_only_if_made_the_same_way(tmp_path: Path, image_meta: LatentsMeta) -> None:
    path = tmp_path / "a.safetensors"
    assert not latents_done(path, image_meta.fingerprint)
    write_image_latents(path, {"latents": LATENTS}, image_meta)
    assert latents_done(path, image_meta.fingerprint)
    assert not latents_done(path, replace(image_meta, dtype="float16").fingerprint)
    path.write_bytes(path.read_bytes()[:-1])
    assert not latents_done(path, image_meta.fingerprint)


def test_replaced_while_it_is_read(tmp_path: Path, image_meta: LatentsMeta) -> None:
    """By another run, with other options: nothing is wrong with the new one."""
    path = tmp_path / "a.safetensors"
    write_image_latents(path, {"latents": torch.zeros(4, 2, 3)}, image_meta)
    reader = open_latents(path)
    write_image_latents(path, {"latents": torch.ones(4, 2, 3)}, replace(image_meta, tool="another"))
    with pytest.raises(InputError, match=r"a\.safetensors' was replaced while it was read; run again"):
        list(reader)


def test_another_vae(tmp_path: Path, image_meta: LatentsMeta) -> None:
    write_image_latents(tmp_path / "a.safetensors", {"latents": LATENTS}, image_meta)
    reader = open_latents(tmp_path / "a.safetensors")
    check_vae(reader, replace(image_meta.vae, id="renamed"))
    for change in {"class_name": "AutoencoderTiny"}, {"weights_sha256": "b" * 64}:
        with pytest.raises(InputError, match=r"a\.safetensors' was made by another VAE: 'builtin'"):
            check_vae(reader, replace(image_meta.vae, id="org/other", **change))
    with pytest.raises(InputError, match="says temporal_factor None, its VAE has 4"):
        check_vae(reader, replace(image_meta.vae, temporal_factor=4))


def test_is_latents(tmp_path: Path, image_meta: LatentsMeta) -> None:
    write_image_latents(tmp_path / "a.safetensors", {"latents": LATENTS}, image_meta)
    (tmp_path / "b.jpg").touch()
    assert is_latents(tmp_path / "a.safetensors")
    assert not is_latents(tmp_path / "b.jpg")
    assert not is_latents(tmp_path)


@pytest.mark.parametrize(
    "header",
    ['{"a": {"data_offsets": [0, 1e999]}}', '{"__metadata__": {"a": ' + "[" * 900 + "]" * 900 + "}}", "[" * 100_000],
    ids=["endless", "deep", "deeper"],
)
def test_no_header_makes_a_look_at_latents_fail(tmp_path: Path, header: str) -> None:
    place = tmp_path / "a.safetensors"
    place.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert not latents_done(place, "f")
    with pytest.raises(ValueError):  # noqa: PT011, of many kinds
        read_texts(place)


def test_texts_are_those_of_the_whole_header(tmp_path: Path) -> None:
    """Read without safetensors, and refused wherever it refuses."""
    place = tmp_path / "a.safetensors"
    save_file({"latents": torch.zeros(4, 2, 3), "more": torch.zeros(5)}, place, {"fingerprint": "f", "é": "ü"})
    assert read_texts(place) == read_header(place).metadata == {"fingerprint": "f", "é": "ü"}
    whole = place.read_bytes()
    for damaged in (whole[:-1], whole + b"\0", whole[:20], b"", b"\xff" * 100, whole[:8] + b"[1]" + whole[11:]):
        place.write_bytes(damaged)
        with pytest.raises(ValueError):  # noqa: PT011, of many kinds
            read_texts(place)
        with pytest.raises(ValueError):  # noqa: PT011
            read_header(place)
