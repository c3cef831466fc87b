"""A job file says what the command's options say; whatever else it says is one line."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvae.pipeline.batch import job_file
from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.keys import cache_keys, keys
from tvae.pipeline.batch.text import as_toml, schema
from tvae.pipeline.caches.spec import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import OPERATIONS, Job

WHOLE = """
vae = "builtin"
size = "640x360"
[[step]]
operation = "encode"
inputs = ["photos", "more/*.png"]
list = "names.txt"
output = "latents"
recursive = true
seed = 7
[[step.override]]
match = "*.mp4"
audio = "none"
size = "64x32"
[[step.override]]
match = ["a/*", "b.mp4"]
size = "32x32"
[[step]]
operation = "decode"
inputs = "latents"
output = "films"
size = "10x10"
space = "raw"
latents_space = "raw"
crf = 18
fps = "30000/1001"
encoder_options = {preset = "slow", "x264-params" = "aq-mode=3", tune = 1}
"""
VALUES: dict[str, Any] = {
    "vae_of": "sdxl",
    "preset": "cpu",
    "dtype": "float32",
    "device": "cpu",
    "devices": "2",
    "spill": ".",
    "vram": "8GiB",
    "latents_key": "latents",
    "codec": "libx264",
    "pix_fmt": "yuv420p",
    "naming": "{stem}",
    "color": "bt709",
    "latents_space": "raw",
    "vae": "builtin",
    "size": "64x32",
    "fps": 25,
    "crf": 17,
    "encoder_options": {"a": "b"},
}


def written(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read_job_file(written(folder, text))
    message = str(caught.value)
    assert "\n" not in message
    assert "job.toml" in message
    return message


def test_steps_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("# listed\nx.png\nsub/y.png\n", encoding="utf-8")
    first, second = read_job_file(written(tmp_path, WHOLE))
    assert first.job.inputs == tuple(str(tmp_path / name) for name in ("photos", "more/*.png"))
    assert [one.name for one in first.job.listed] == [str(tmp_path / name) for name in ("x.png", "sub/y.png")]
    assert (first.job.operation, first.job.vae, first.job.size, first.job.seed) == ("encode", "builtin", (640, 360), 7)
    assert first.job.recursive
    assert first.output == str(tmp_path / "latents")
    assert first.job_with(()) == first.job
    assert first.job_with((0,)).size == (64, 32)
    both = first.job_with((0, 1))
    assert (both.audio, both.size) == ("none", (32, 32))
    assert (second.job.operation, second.job.inputs) == ("decode", (str(tmp_path / "latents"),))
    assert (second.job.crf, second.job.fps) == (18.0, Fraction(30000, 1001))
    assert second.job.encoder_options == (("preset", "slow"), ("x264-params", "aq-mode=3"), ("tune", "1"))
    assert second.overrides == ()


def test_one_step_needs_no_table(tmp_path: Path) -> None:
    mark = "\ufeff"  # editors of Windows put it before a text
    (step,) = read_job_file(written(tmp_path, f'{mark}operation = "encode"\ninputs = "a.png"\n'))
    assert step.job.inputs == (str(tmp_path / "a.png"),)
    assert step.output == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('operatoin = "encode"', "unknown key 'operatoin'; did you mean 'operation'?"),
        (
            'operation = "encod"\ninputs = "a"',
            "must be one of encode, decode, roundtrip, cache, verify; found 'encod'",
        ),
        ('inputs = "a"', "it is missing"),
        ('operation = "encode"\ninputs = "a"\nsharers = 2', "unknown key 'sharers'"),
        ('operation = "encode"\ninputs = "a"\nvea = "x"', "unknown key 'vea'; did you mean 'vae'?"),
        ('operation = "encode"\ninputs = "a"\nseed = "7"', "seed must be a whole number, found '7'"),
        ('operation = "encode"\ninputs = "a"\nseed = true', "seed must be a whole number, found True"),
        ('operation = "encode"\ninputs = "a"\nseed = -1', "seed -1 is out of range"),
        ('operation = "encode"\ninputs = "a"\nsize = "64"', "size must be a size such as '1280x720', found '64'"),
        ('operation = "encode"\ninputs = "a"\nfit = "tight"', "fit must be one of"),
        ('operation = "encode"\ninputs = 3', "inputs must be a text or a list of texts, found 3"),
        ('operation = "encode"\ninputs = ["a", ""]', "inputs must be"),
        ('operation = "encode"\ninputs = []', "nothing to encode"),
        ('operation = "encode"\ninputs = "a"\noutput = 1', "output must be a text, found 1"),
        ('operation = "encode"\ninputs = "a"\n[[override]]\nsize = "1x1"', "override 1: match is missing"),
        (
            'operation = "encode"\ninputs = "a"\n[[override]]\nmatch = "*"\nsiez = "1x1"',
            "override 1: unknown key 'siez'",
        ),
        (
            'operation = "encode"\ninputs = "a"\n[[override]]\nmatch = "*"\nbatch = 0',
            "override 1: batch 0 is too small",
        ),
        ('operation = "encode"\ninputs = "a"\noverride = 3', "override must be tables"),
        ('operation = "cache"\ninputs = "a"', "which has to know for which trainer"),
        ('operation = "encode"\ninputs = "a"\ncache = {trainer = "kohya"}', "a cache is made by the operation cache"),
        ('operation = "cache"\ninputs = "a"\ncache = 3', "cache: it must be a table"),
        ('operation = "cache"\ninputs = "a"\ncache = {}', "cache: trainer is missing"),
        ('operation = "cache"\ninputs = "a"\ncache = {trainr = "x"}', "cache: unknown key 'trainr'; did you mean"),
        ('operation = "cache"\ninputs = "a"\ncache = {trainer = "x", flip = 1}', "flip must be true or false, found 1"),
        ('operation = "cache"\ninputs = "a"\ncache = {trainer = "x", buckets = "9-1"}', "buckets must be on, off"),
        ('operation = "cache"\ninputs = "a"\ncache = {trainer = "x", frames = 0}', "--frames 0 is too small"),
        ("step = 3", "step must be tables"),
        ("step = []", "step must be tables"),
        ('inputs = "a"\n[[step]]\noperation = "encode"', "unknown key 'inputs'"),
        ('[[step]]\noperation = "encode"\ninputs = "a"\n[[step]]\noperation = "encode"', "step 2: nothing to encode"),
        ('operation = "decode"\ninputs = "a"\nfps = "1/0"', "fps must be a rate"),
        ('operation = "decode"\ninputs = "a"\nfps = "1e999999999"', "fps must be a rate"),
        ('operation = "decode"\ninputs = "a"\nfps = true', "fps must be a rate"),
        ('operation = "decode"\ninputs = "a"\ncrf = nan', "crf must be a number, found nan"),
        ('operation = "decode"\ninputs = "a"\nencoder_options = {a = inf}', "encoder_options must be a table"),
        ('operation = "encode"\ninputs = "a\\u0000"', "inputs must be"),
        ('operation = "encode"\ninputs = "a"\noutput = "a\\u0000"', "output must be a text"),
        ('operation = "decode"\ninputs = "a"\nencoder_options = {a = [1]}', "encoder_options must be a table"),
        ("not toml", "is not valid"),
        ("a = " + "[" * 5000, "is not valid"),
    ],
)
def test_what_is_wrong_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    assert told in refused(tmp_path, text)


def test_an_override_is_checked_with_what_the_step_says(tmp_path: Path) -> None:
    text = 'operation = "decode"\ninputs = "a"\nvae = "builtin"\n[[override]]\nmatch = "*"\nlatents_space = "model"\n'
    (step,) = read_job_file(written(tmp_path, text))
    assert step.job_with((0,)).latents_space == "model"
    assert "pass --vae" in refused(tmp_path, text.replace('vae = "builtin"\n', ""))


def test_a_vae_is_a_path_where_it_is_there(tmp_path: Path) -> None:
    text = 'operation = "encode"\ninputs = "a"\nvae = "mine/vae"\n'
    assert read_job_file(written(tmp_path, text))[0].job.vae == "mine/vae", "an id of the hub"
    (tmp_path / "mine" / "vae").mkdir(parents=True)
    assert read_job_file(written(tmp_path, text))[0].job.vae == str(tmp_path / "mine" / "vae")
    (tmp_path / "builtin").mkdir()
    assert read_job_file(written(tmp_path, text.replace("mine/vae", "builtin")))[0].job.vae == "builtin"


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot read the job"):
        read_job_file(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot read the job"):
        read_job_file(tmp_path)
    (tmp_path / "job.toml").write_bytes(b"\xff\xfea")
    with pytest.raises(UsageError, match=r"is not valid.*save it as UTF-8"):
        read_job_file(tmp_path / "job.toml")
    monkeypatch.setattr(job_file, "MOST_BYTES", 10)
    assert "more than 10 bytes" in refused(tmp_path, 'operation = "encode"')
    missing = 'operation = "encode"\nlist = "none.txt"'
    monkeypatch.setattr(job_file, "MOST_BYTES", 1000)
    assert "cannot read the list none.txt" in refused(tmp_path, missing)
    (tmp_path / "none.txt").write_bytes(b"\xff\xfea")
    assert "save it as UTF-8" in refused(tmp_path, missing)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no fifos")
def test_nothing_waits_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "names")
    assert "cannot read the list names" in refused(tmp_path, 'operation = "encode"\nlist = "names"')
    with pytest.raises(UsageError, match="cannot read the job"):
        read_job_file(tmp_path / "names")


@pytest.mark.parametrize(("said", "rate"), [("25", 25), ('"29.97"', Fraction(2997, 100)), ('"24/1"', 24), ('"007"', 7)])
def test_rates(said: str, rate: Any, tmp_path: Path) -> None:
    (step,) = read_job_file(written(tmp_path, f'operation = "decode"\ninputs = "a"\nfps = {said}'))
    assert step.job.fps == rate


def test_every_field_of_a_job_is_a_key_and_reaches_it(tmp_path: Path) -> None:
    """A field that is added to ``Job`` is one here, too, or is named as none."""
    own = {"operation", "inputs", "output", "listed", "cache", "dry_run", "exact", "claim", "sharers", "recorded"}
    assert {*keys()} == {f.name for f in fields(Job)} - own
    for name, key in keys().items():
        kind = key.schema.get("type")
        value = VALUES.get(name, {"boolean": True, "integer": 3}.get(str(kind)) or key.schema.get("enum", [None])[-1])
        beside = {"operation": "decode", "inputs": "x", "vae": "builtin", "latents_space": "raw", name: value}
        beside |= {"devices": "2"} if name == "split" else {}
        (step,) = read_job_file(written(tmp_path, "\n".join(_lines(beside))))
        expected = {"spill": str(tmp_path), "size": (64, 32), "fps": Fraction(25), "encoder_options": (("a", "b"),)}
        assert getattr(step.job, name) == expected.get(name, value), name


def test_a_step_for_a_trainers_cache(tmp_path: Path) -> None:
    text = 'operation = "cache"\ninputs = "a"\nvae = "builtin"\n[cache]\ntrainer = "kohya"\narchitecture = "sdxl"\n'
    text += 'buckets = "256-2048/64"\nflip = true\nalpha_mask = true\nposterior = "mean"\ntarget_fps = 12\nframes = 9\n'
    (step,) = read_job_file(written(tmp_path, text))
    expected = CacheRequest("kohya", "sdxl", Buckets(True, 256, 2048, 64), flip=True, posterior="mean", frames=(9,))
    assert step.job.cache == replace(expected, target_fps=12.0, alpha_mask=True)
    assert {*cache_keys()} == {f.name for f in fields(CacheRequest)}
    again = read_job_file(written(tmp_path, as_toml([step.said])))
    assert again[0].job == step.job


@pytest.mark.parametrize(("said", "frames"), [("9", (9,)), ("[9]", (9,)), ("[9, 17]", (9, 17))])
def test_lengths_of_pieces(said: str, frames: tuple[int, ...], tmp_path: Path) -> None:
    text = 'operation = "cache"\ninputs = "a"\nvae = "builtin"\n[cache]\ntrainer = "musubi"\n'
    (step,) = read_job_file(written(tmp_path, f"{text}frames = {said}\n"))
    assert step.job.cache == CacheRequest("musubi", frames=frames)
    again = read_job_file(written(tmp_path, as_toml([step.said])))
    assert again[0].job == step.job
    assert "frames must be a whole number or a list of them" in refused(tmp_path, f"{text}frames = [9, true]\n")


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{k} = {'{a = 1}' if v == {'a': 1} else _toml(v)}" for k, v in values.items()]


def _toml(value: Any) -> str:
    return '{a = "b"}' if isinstance(value, dict) else json.dumps(value)


def test_what_is_printed_reads_as_the_same(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("x.png\n", encoding="utf-8")
    steps = read_job_file(written(tmp_path, WHOLE))
    again = read_job_file(written(tmp_path, as_toml([step.said for step in steps])))
    assert [(s.job, s.overrides) for s in again] == [(s.job, s.overrides) for s in steps]


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(names=st.lists(texts, min_size=1, max_size=3), pattern=texts, key=texts)
def test_any_text_is_printed_as_itself(names: list[str], pattern: str, key: str) -> None:
    said = {"operation": "encode", "inputs": names, "encoder_options": {key: "x"}}
    said["override"] = [{"match": [pattern], "seed": 1}]
    text = as_toml([said])
    assert tomllib.loads(text)["step"] == [said]


def test_the_schema_knows_the_keys(tmp_path: Path) -> None:
    found = schema()
    several, step = found["oneOf"]
    assert {*step["properties"]} == {
        *("operation", "source", "inputs", "list", "listed", "jsonl", "output", "output_file", "cache", "override"),
        *keys(),
    }
    assert {*several["properties"]} == {"step", *keys()}
    assert step["properties"]["operation"] == {"enum": [*OPERATIONS, "verify"]}
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(found)
    (tmp_path / "names.txt").touch()
    jsonschema.validate(tomllib.loads(WHOLE), found)
    for wrong in ('operation = "encod"', 'operation = "encode"\nseed = "7"', 'operation = "encode"\nvea = "x"'):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(wrong), found)
