"""``--print-config`` of the commands: a job file by which ``tvae batch`` makes the same bytes."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from clips import write_clip
from hypothesis import given
from hypothesis import strategies as st
from job_files import checksums, photo
from program import invoke
from safetensors.torch import load_file
from tiny_vaes import TINY
from typer.testing import Result

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.said import said_of
from tvae.pipeline.batch.text import as_toml
from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job, Listed

Tvae = Callable[..., Result]


@pytest.fixture
def tvae() -> Tvae:
    """The program with its own VAE, in the place of the stand-in."""
    return lambda *arguments: invoke([str(argument) for argument in arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, whose name could be a pattern, with photos, a clip and a list in it."""
    folder = tmp_path / "a[1]"
    for n in range(3):
        photo(folder / "in" / f"{n}.png", n)
    photo(folder / "in" / "sub" / "3.png", 3)
    (folder / "clips").mkdir()
    write_clip(folder / "clips" / "c.mp4", 5, sound=False)
    (folder / "names.txt").write_text("in/0.png\nin/none.png\nin/sub/*.png\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


SAME = ("--device", "cpu", "--batch", "1", "-q")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("encode", "in", "--recursive", "-o", "out", "--size", "16x24", "--fit", "cover", "--seed", "3"),
        ("encode", "in/0.png", "-o", "out/x.safetensors", "--posterior", "sample", "--seed", "7"),
        ("encode", "i?/*.png", "-o", "out", "--space", "model", "--align", "crop"),
        ("encode", "in/1.png", "-a", "names.txt", "-o", "out", "--dtype", "bf16"),
        ("roundtrip", "in/sub/3.png", "-o", "out/y.jpg", "--enc", "quality=80", "--alpha", "drop"),
        ("roundtrip", "clips", "-o", "out", "--fps", "29.97", "--crf", "31", "--audio", "none"),
    ],
)
def test_the_job_makes_the_same_bytes(command: tuple[str, ...], tvae: Tvae, here: Path, tmp_path: Path) -> None:
    printed = tvae(*command, *SAME, "--print-config")
    assert printed.exit_code == 0, printed.stderr
    assert not (here / "out").exists()
    (tmp_path / "kept.toml").write_text(printed.stdout, encoding="utf-8")
    code = tvae(*command, *SAME).exit_code
    expected = checksums(here / "out")
    assert expected
    shutil.rmtree(here / "out")
    os.chdir(tmp_path)  # the file may be anywhere, and be run from anywhere
    assert tvae("batch", tmp_path / "kept.toml", "-q").exit_code == code
    assert checksums(here / "out") == expected
    again = tvae("batch", tmp_path / "kept.toml", "--print-config")
    assert tomllib.loads(again.stdout)["step"] == tomllib.loads(printed.stdout)["step"]


def test_a_vae_below_the_current_folder(tvae: Tvae, here: Path, tmp_path: Path) -> None:
    """The same values; latents name the VAE by the path that it was found by, which is whole in a job."""
    TINY["AutoencoderKL"].build().save_pretrained(here / "vae")
    command = ("encode", "in/0.png", "--vae", "vae", "-o", "out", *SAME)
    (tmp_path / "kept.toml").write_text(tvae(*command, "--print-config").stdout, encoding="utf-8")
    assert tvae(*command).exit_code == 0
    expected = load_file(here / "out" / "0.png.safetensors")
    shutil.rmtree(here / "out")
    os.chdir(tmp_path)
    assert tvae("batch", tmp_path / "kept.toml", "-q").exit_code == 0
    made = load_file(here / "out" / "0.png.safetensors")
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in made)


def test_latents(tvae: Tvae, here: Path, tmp_path: Path) -> None:
    tvae("encode", "in", "-o", "lat", *SAME)
    command = ("decode", "lat", "-o", "out", "--enc", "compress_level=1", *SAME)
    (tmp_path / "kept.toml").write_text(tvae(*command, "--print-config").stdout, encoding="utf-8")
    assert tvae(*command).exit_code == 0
    expected = checksums(here / "out")
    shutil.rmtree(here / "out")
    assert tvae("batch", tmp_path / "kept.toml", "-q").exit_code == 0
    assert checksums(here / "out") == expected


def _values(kind: Any, name: str) -> st.SearchStrategy[Any]:
    texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
    special: dict[str, st.SearchStrategy[Any]] = {
        "vram": st.sampled_from(["8GiB", "512MiB"]),
        "size": st.tuples(st.integers(1, 9999), st.integers(1, 9999)),
        "fps": st.fractions(Fraction(1, 999), 999, max_denominator=999).filter(bool),
        "crf": st.floats(0, 63),
        "seed": st.integers(0, 2**63 - 1),
        "encoder_options": st.lists(st.tuples(texts, texts), unique_by=lambda pair: pair[0]).map(tuple),
        "existing": st.sampled_from(["skip", "keep", "overwrite"]),
        "fit": st.sampled_from(["contain", "cover", "stretch"]),
        "dtype": st.sampled_from(["float32", "bfloat16"]),
        "device": texts,
        "preset": texts,
        "codec": texts,
    }
    if name in special:
        return special[name]
    return st.booleans() if kind is bool else st.integers(1, 10**6) if "int" in str(kind) else texts


@given(data=st.data())
def test_any_job_is_read_as_it_was(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("jobs")
    names = ("vram", "size", "fps", "crf", "seed", "encoder_options", "existing", "dtype", "device", "preset", "codec")
    names += (
        "recursive",
        "strip",
        "threads",
        "batch",
        "allow_whole",
        "wait_for_kernels",
        "max_pixels",
        "pix_fmt",
        "color",
    )
    kinds = {field.name: field.type for field in fields(Job)}
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    values = {name: data.draw(_values({"bool": bool}.get(str(kinds[name]), kinds[name]), name)) for name in chosen}
    texts = st.text(st.characters(codec="utf-8", exclude_characters="\0/\\*?[~"), min_size=1, max_size=9)
    texts = texts.filter(lambda text: text.strip(". ") == text)
    listed = tuple(Listed(str(folder / name)) for name in data.draw(st.lists(texts, max_size=3)))
    inputs = tuple(str(folder / name) for name in data.draw(st.lists(texts, min_size=1, max_size=3)))
    job = Job("roundtrip", inputs, str(folder / "out") + os.sep, listed, **values)
    (folder / "job.toml").write_text(as_toml([said_of(job)]), encoding="utf-8")
    (step,) = read_job_file(folder / "job.toml")
    assert step.job == job


@pytest.mark.parametrize("buckets", ["on", "off", "256-2048", "64-512/32"])
def test_a_cache(buckets: str, tvae: Tvae, here: Path, tmp_path: Path) -> None:
    given = ("cache", "in", "--for", "kohya", "--arch", "sdxl", "--buckets", buckets, "--size", "64x64", "--flip")
    given += ("--alpha-mask",)
    (tmp_path / "kept.toml").write_text(tvae(*given, "--print-config").stdout, encoding="utf-8")
    (step,) = read_job_file(tmp_path / "kept.toml")
    assert step.job.cache == CacheRequest("kohya", "sdxl", Buckets.parse(buckets), flip=True, alpha_mask=True)
    assert (step.job.inputs, step.job.size, step.output) == ((str(here / "in"),), (64, 64), str(here))


def test_what_is_not_as_by_default_alone_is_printed(tvae: Tvae, here: Path) -> None:
    printed = tomllib.loads(tvae("encode", "in", "--print-config").stdout)
    assert printed == {"step": [{"operation": "encode", "inputs": [str(here / "in")], "output": str(here)}]}
    assert all(field.default is not MISSING for field in fields(Job) if field.name not in ("operation", "inputs"))


@pytest.mark.skipif(os.name == "nt", reason="names are texts there")
def test_a_name_that_is_no_text_is_refused(here: Path) -> None:
    with pytest.raises(UsageError, match="is no valid text"):
        as_toml([said_of(Job("encode", (os.fsdecode(b"in/\xff.png"),)))])


@pytest.mark.parametrize(
    "command",
    [("encode", "in"), ("decode", "in"), ("roundtrip", "in"), ("cache", "in", "--for", "kohya", "--arch", "sdxl")],
)
def test_kernels_are_waited_for(command: tuple[str, ...], tvae: Tvae, here: Path) -> None:
    assert "wait_for_kernels = true\n" in tvae(*command, "--wait-for-kernels", "--print-config").stdout
    assert "wait_for_kernels" not in tvae(*command, "--print-config").stdout
