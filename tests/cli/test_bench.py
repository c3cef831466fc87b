"""``tvae bench`` through the program: rows as JSON and as tables, exit codes, and what is refused before measuring."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Tvae = Callable[..., Result]
KERNELS = ("bench", "kernels", "--device", "cpu", "--size", "16", "--channels", "8", "--levels", "native", "--quick")
VAE = ("bench", "vae", "--device", "cpu", "--sizes", "16", "--rivals", "diffusers", "--repeat", "1")


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_kernels_as_json(tvae: Tvae) -> None:
    ceilings, rows = {}, {}
    for line in objects(tvae(*KERNELS, "--json")):
        if line["type"] == "ceiling":
            ceilings[line["kind"]] = line
        else:
            assert line["type"] == "kernel"
            rows[line["operation"]] = line
    assert set(ceilings) == {"copy", "matrix"}
    assert ceilings["copy"]["rate"] > 1e6
    assert ceilings["copy"]["device"] == "cpu"
    assert {"group_stats", "norm_act", "wide_attention"} <= set(rows)
    for row in rows.values():
        assert (row["status"], row["level"], row["chosen"]) == ("ok", "native", True)
        assert row["seconds"] > 0
        products = row["operation"] in ("conv3d", "conv_add", "down_conv", "enlarge_conv", "wide_attention")
        of = ceilings["matrix" if products else "copy"]
        assert row["share"] == pytest.approx(row["rate"] / of["rate"])


def test_kernels_as_a_table(tvae: Tvae) -> None:
    result = tvae(*KERNELS, "--ops", "norm_act,sample", "--levels", "cuda,native")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert any(line.split()[:2] == ["norm_act", "native*"] for line in lines)
    assert any(line.startswith("no cuda: ") for line in lines)
    assert tvae(*KERNELS, "--ops", "sample", "-q").stdout == ""


def test_a_wrong_level_is_exit_code_4(tvae: Tvae, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.kernels import native

    monkeypatch.setitem(native.IMPLEMENTATIONS, "sample", lambda mean, std, noise: mean + noise)
    result = tvae(*KERNELS, "--ops", "sample,norm_act", "--json")
    assert result.exit_code == 4
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["operation"]: row["status"] for row in rows[1:]} == {"sample": "wrong", "norm_act": "ok"}
    assert "WRONG" in tvae(*KERNELS, "--ops", "sample").stdout


@pytest.mark.slow
def test_vae_as_json(tvae: Tvae, tiny: str) -> None:
    rows = objects(tvae(*VAE, "--vae", tiny, "--batch", "1,2", "--dtype", "bf16", "--json"))
    assert [(row["rival"], row["batch"]) for row in rows] == [
        ("diffusers", 1),
        ("tvae", 1),
        ("diffusers", 2),
        ("tvae", 2),
    ]
    for row in rows:
        assert (row["type"], row["status"], row["side"], row["dtype"]) == ("vae_run", "ok", "decode", "bfloat16")
        assert (row["width"], row["height"], row["frames"]) == (16, 16, None)
        assert 1e-4 < row["error"] < 0.1
        assert 0 < row["seconds_per_frame"] * row["batch"] == pytest.approx(row["seconds"])
        assert row["first_seconds"] > 0
    assert rows[0]["speedup"] == 1


@pytest.mark.long
def test_vae_as_a_table(tvae: Tvae, tiny: str) -> None:
    result = tvae(*VAE, "--vae", tiny, "--side", "encode", "--reference", "none")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    names = [line.split()[3] for line in result.stdout.splitlines() if line.startswith("encode 16x16")]
    assert names == ["diffusers", "tvae"]


@pytest.mark.slow
def test_first_use_has_columns_of_its_own(tvae: Tvae, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.bench import vae
    from tvae.pipeline.bench.first_use import FirstUse, FirstUseModel

    asked: list[FirstUseModel] = []

    def measured(rival: str, case: Any, subject: FirstUseModel) -> FirstUse:
        asked.append(subject)
        return FirstUse(7.0, 1.5)

    monkeypatch.setattr(vae, "first_use", measured)
    table = tvae(*VAE, "--vae", tiny, "--strip", "3", "--first-use").stdout
    assert "first use  next use" in table
    assert "7 s     1.5 s" in table
    preset = Path(asked[0].preset)
    assert asked == 2 * [FirstUseModel(tiny, None, str(preset), "cpu", "float32", 3)]
    assert preset.name == "cpu.toml"
    rows = objects(tvae(*VAE, "--vae", tiny, "--first-use", "--json"))
    assert [(row["first_use_seconds"], row["next_use_seconds"]) for row in rows] == 2 * [(7.0, 1.5)]


@pytest.mark.long
def test_io(tvae: Tvae, photo: Path, tmp_path: Path) -> None:
    rows = objects(tvae("bench", "io", photo, "--size", "32x16", "--frames", "2", "--device", "cpu", "--json"))
    assert {"read file", "encode video", "write latents", "write to disk"} <= {row["what"] for row in rows}
    table = tvae("bench", "io", "--size", "32x16", "--frames", "2", "--device", "cpu", "--folder", tmp_path)
    assert "decode video" in table.stdout
    assert list(tmp_path.iterdir()) == [photo]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((*KERNELS, "--levels", "trition"), "unknown level 'trition'; did you mean 'triton'?"),
        ((*KERNELS, "--ops", "norm_act,nope"), "unknown operation 'nope' (there are: add_stats"),
        ((*KERNELS, "--channels", "12"), "--channels 12 is not a multiple of 8"),
        ((*KERNELS, "--dtype", "int8"), "unknown dtype 'int8'"),
        ((*KERNELS, "--preset", "h20"), "did you mean 'h200'?"),
        ((*KERNELS, "--plot", "chart.svg"), ".png file"),
        ((*VAE, "--rivals", "diffuser"), "did you mean 'diffusers'?"),
        ((*VAE, "--sizes", "16x"), "--sizes 16x is not a list of N or WxH"),
        ((*VAE, "--sizes", "17"), "17x17: this VAE needs multiples of 8"),
        ((*VAE, "--batch", "0"), "--batch 0 is not a list of numbers"),
        ((*VAE, "--frames", "5"), "--frames is for video VAEs"),
        ((*VAE, "--vae", "builtin", "--config", "sdxl"), "cannot be used together"),
        ((*VAE, "--vae", "no-such-vae"), "no VAE 'no-such-vae'"),
        (("bench", "io", "no-such-file"), "no-such-file does not exist"),
        (("bench", "io", "--folder", "no-such-folder"), "no-such-folder does not exist"),
        (("bench", "io", "."), ". is a folder"),
    ],
)
def test_what_is_refused_is_one_line(tvae: Tvae, arguments: tuple[str, ...], reason: str) -> None:
    result = tvae(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert reason in line


def test_a_chart_needs_matplotlib(tvae: Tvae, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvae.pipeline.bench.plot.find_spec", lambda name: None)
    result = tvae(*KERNELS, "--plot", tmp_path / "a.png")
    assert result.exit_code == 2
    assert result.stderr == "tvae: --plot needs matplotlib: pip install 'tvae[bench]', or leave --plot out\n"


@pytest.mark.slow
def test_charts(tvae: Tvae, tiny: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, arguments in (("kernels.png", (*KERNELS, "--ops", "sample")), ("vae.png", (*VAE, "--vae", tiny))):
        assert tvae(*arguments, "--plot", tmp_path / name).exit_code == 0
        assert (tmp_path / name).stat().st_size > 1000


def test_help_names_the_extra(tvae: Tvae) -> None:
    """Square brackets are markup in help texts."""
    assert "tvae[bench]" in tvae("bench", "kernels", "--help").stdout


def test_the_bare_command_shows_help(tvae: Tvae) -> None:
    result = tvae("bench")
    assert result.exit_code == 0
    assert "kernels" in result.stdout


@pytest.mark.long
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom tvae.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('heavy:', [m for m in ('torch', 'numpy', 'diffusers', 'tvae.pipeline.errors') if m in sys.modules])"
    )
    for arguments in (["bench", "--help"], ["bench", "vae", "--help"], ["preset", "tune", "--help"]):
        out = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert "heavy: []" in out.stdout


@pytest.mark.long
def test_a_job_as_json_and_as_a_table(tvae: Tvae, tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        levels = np.random.default_rng(number).integers(0, 256, (16, 24, 3), dtype=np.uint8)
        Image.fromarray(levels).save(folder / f"{number}.png")
    chart = tmp_path / "chart.png"
    rows = objects(tvae("bench", "job", folder, "--device", "cpu", "--json", "--plot", chart, "--folder", tmp_path))
    assert [(row["type"], row["what"], row["items"]) for row in rows] == [
        ("job", "encode", 12),
        ("job", "skip", 12),
        ("job", "decode", 12),
    ]
    assert all(row["rate"] is None or row["rate"] > 0 for row in rows)
    assert rows[0]["stages"].keys() == {"read", "compute", "write"}
    assert rows[0]["bottleneck"].startswith("bottleneck: ")
    with Image.open(chart) as drawn:
        assert drawn.width > 1000
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "chart.png"}
    sized = objects(tvae("bench", "job", folder, "--device", "cpu", "--json", "--size", "16x16"))
    assert [row["what"] for row in sized] == ["encode", "skip", "decode"]
    (folder / "broken.png").write_bytes(b"nothing")
    result = tvae("bench", "job", folder, "--device", "cpu", "--batch", 2)
    assert result.exit_code == 3
    assert any(line.split()[:3] == ["encode", "12", "1"] for line in result.stdout.splitlines()), result.stdout
    assert tvae("bench", "job").exit_code == 2
    assert tvae("bench", "job", folder, "--batch", 0).exit_code == 2
