"""Presets: the ones that are shipped, users' own, everything that can be wrong with one, and what `auto` means."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tvae import kernels, presets
from tvae.presets import loader

GIB = 1024**3
LEVEL = 'default = "triton"'
SEARCH = "cudnn_benchmark = false"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the user's presets."""
    folder = tmp_path / "presets"
    folder.mkdir()
    monkeypatch.setattr(loader, "user_folder", lambda: folder)
    return folder


CONVOLUTIONS = {"default": "triton", "conv_add": "cuda", "conv3d": "cuda", "down_conv": "cuda", "enlarge_conv": "cuda"}
SHIPPED = {
    "cpu": ("float32", "channels_last", False, False, 16, 0.5, 4, 4, {"default": "native"}),
    "rtx30": ("bfloat16", "channels_last", "steps", True, 32, 0.8, 4, 8, {"default": "triton"}),
    "a100": ("bfloat16", "channels_last", "steps", True, 64, 0.9, 8, 8, {"default": "triton"}),
    "rtx40": ("bfloat16", "channels_last", "steps", True, 32, 0.8, 4, 8, {"default": "triton"}),
    "rtx50": ("bfloat16", "channels_last", "steps", True, 32, 0.8, 4, 8, {"default": "triton"}),
    "b200": ("bfloat16", "channels_last", "steps", True, 64, 0.9, 8, 8, {"default": "triton"}),
    "h100": ("bfloat16", "channels_last", False, True, 256, 0.9, 8, 8, CONVOLUTIONS),
    "h200": ("bfloat16", "channels_last", False, True, 256, 0.9, 8, 8, CONVOLUTIONS),
}
"""What each is with what it leaves out: a change of `defaults.toml` shows here, in every preset that it reaches."""


def test_those_that_are_shipped_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader.sys, "platform", "linux")
    assert presets.names() == [*SHIPPED]
    files = {path.stem for path in Path(loader.__file__).parent.glob("*.toml")}
    assert files == {*SHIPPED, "defaults"}
    for name, values in SHIPPED.items():
        preset = presets.load(name)
        assert preset.name == name
        assert values == (
            *(preset.dtype, preset.memory_layout, preset.cudnn_benchmark, preset.cuda_graphs, preset.strip_rows),
            *(preset.memory_share, preset.io_workers, preset.queue_frames, preset.levels),
        )
        kernels.check_levels(preset.levels)


def test_those_that_are_shipped_say_nothing_twice() -> None:
    folder = Path(loader.__file__).parent
    defaults = tomllib.loads((folder / "defaults.toml").read_text(encoding="utf-8"))
    for name in SHIPPED:
        own = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        assert {key for key in own if key in defaults and own[key] == defaults[key]} == set(), name
        assert {key for key, level in own.get("levels", {}).items() if defaults["levels"].get(key) == level} == set()


def test_a_shipped_file_is_the_same_by_its_path() -> None:
    for name in SHIPPED:
        assert presets.load(presets.load(name).source) == presets.load(name)


def test_a_copy_of_a_shipped_file_lacks_what_it_leaves_out(tmp_path: Path) -> None:
    """A file of one's own does not change its meaning with a version of tvae."""
    path = tmp_path / "h200.toml"
    path.write_bytes(presets.load("h200").source.read_bytes())
    with pytest.raises(ValueError, match="'cuda_graphs' is missing"):
        presets.load(path)


def test_levels_by_operation(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    chosen = 'default = "compile"\nnorm_act = "cuda"\nsample = "native"'
    path.write_text(presets.export("a100").replace(LEVEL, chosen), encoding="utf-8")
    levels = presets.load(path).levels
    assert levels == {"default": "compile", "norm_act": "cuda", "sample": "native"}
    assert kernels.Kernels(levels).levels["norm_act"] == "cuda"


def test_measured_values_say_on_what() -> None:
    for name in presets.names():
        for value, basis in presets.load(name).measured.items():
            assert basis, f"{name}: {value}"
    assert "H200" in presets.load("h200").measured["strip_rows"]
    assert presets.load("rtx50").measured == {}


def test_export_is_a_preset_with_comments(tmp_path: Path) -> None:
    text = presets.export("h200")
    assert "# Height of a strip in latent rows" in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("strip_rows = 256", "strip_rows = 17"), encoding="utf-8")
    preset = presets.load(path)
    assert (preset.name, preset.strip_rows, preset.source) == ("mine", 17, path)
    assert presets.load(str(path)) == preset


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_an_editor_may_put_a_byte_order_mark_before_it(encoding: str, tmp_path: Path) -> None:
    """Windows's Notepad and PowerShell do; ``>`` of Windows PowerShell writes UTF-16."""
    path, mark = tmp_path / "mine.toml", "\ufeff" if encoding == "utf-16-be" else ""
    path.write_text(mark + presets.export("h200"), encoding=encoding, newline="\r\n")
    assert presets.load(path).strip_rows == presets.load("h200").strip_rows
    assert tomllib.loads(presets.export(path)) == tomllib.loads(presets.export("h200"))
    for data in (b"\xff\xfea", b"# \xe4\n"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="save it as UTF-8"):
            presets.load(path)


def test_own_presets_add_and_override(own: Path) -> None:
    for name in ("zoo", "h200"):
        text = presets.export("h100").replace("strip_rows = 256", "strip_rows = 48")
        (own / f"{name}.toml").write_text(text, encoding="utf-8")
    assert presets.names()[-1] == "zoo"
    assert presets.names().count("h200") == 1
    assert presets.load("zoo").strip_rows == presets.load("h200").strip_rows == 48
    assert presets.choose("cuda", (9, 0), 130 * GIB).strip_rows == 48


@pytest.mark.parametrize(
    ("device", "capability", "free", "name"),
    [
        ("cpu", None, None, "cpu"),
        ("mps", None, 8 * GIB, "cpu"),
        ("xpu", None, 8 * GIB, "cpu"),
        ("cuda", (8, 0), 70 * GIB, "a100"),
        ("cuda", (8, 6), 20 * GIB, "rtx30"),
        ("cuda", (8, 7), 20 * GIB, "rtx30"),
        ("cuda", (8, 9), 20 * GIB, "rtx40"),
        ("cuda", (9, 0), 75 * GIB, "h100"),
        ("cuda", (9, 0), 130 * GIB, "h200"),
        ("cuda", (9, 0), None, "h100"),
        ("cuda", (10, 0), 170 * GIB, "b200"),
        ("cuda", (10, 3), 250 * GIB, "b200"),
        ("cuda", (12, 0), 30 * GIB, "rtx50"),
        ("cuda", (12, 1), 30 * GIB, "rtx50"),
        ("cuda", (11, 0), 30 * GIB, "rtx30"),
        ("cuda", (13, 0), 30 * GIB, "rtx30"),
        ("cuda", (7, 5), 12 * GIB, "rtx30"),
        ("cuda", None, None, "rtx30"),
    ],
)
def test_auto(device: str, capability: tuple[int, int] | None, free: int | None, name: str) -> None:
    preset = presets.choose(device, capability, free)
    assert preset.name == name
    assert preset.strip_rows == presets.load(name).strip_rows


def test_auto_without_bfloat16_or_memory() -> None:
    assert presets.choose("cuda", (7, 5), 12 * GIB).dtype == "float32"
    assert presets.choose("cuda", (8, 6), 12 * GIB).dtype == "bfloat16"
    assert presets.choose("cuda", (8, 6), 4 * GIB).strip_rows == 16


@pytest.mark.parametrize("system", ["win32", "linux"])
def test_few_workers_on_windows(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader.sys, "platform", system)
    assert presets.load("h200").io_workers == (2 if system == "win32" else 8)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("h20", "no preset 'h20'; did you mean 'h200'.*auto, cpu, "),
        ("quantum", "no preset 'quantum' .there are"),
        ("../presets/cpu", "no preset"),
        ("auto", "'auto' is no preset"),
        ("absent.toml", "cannot read preset 'absent.toml': No such file"),
    ],
)
def test_unknown_names(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        presets.load(name)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('dtype = "bfloat16"', 'dtype = "bf16"', "dtype must be one of float32, bfloat16, float16, found 'bf16'"),
        ('"channels_last"\n', '"nhwc"\n', "memory_layout must be one of contiguous, channels_last"),
        (SEARCH, "cudnn_benchmark = 1", "cudnn_benchmark must be true, false or 'steps', found 1"),
        (SEARCH, "cudnn_benchmark = 'step'", "cudnn_benchmark must be true, false or 'steps'"),
        ("strip_rows = 256", "strip_rows = 0", "strip_rows must be a whole number from 1 to"),
        ("strip_rows = 256", "strip_rows = 64.0", "strip_rows must be a whole number"),
        ("strip_rows = 256", "strip_rows = true", "strip_rows must be a whole number"),
        ("strip_rows = 256", "strip_row = 64", "unknown key 'strip_row'; did you mean 'strip_rows'"),
        ("strip_rows = 256\n", "", "'strip_rows' is missing"),
        ("memory_share = 0.9", "memory_share = 90", "memory_share must be a number above 0, at most 1"),
        ("memory_share = 0.9", 'memory_share = "0.9"', "memory_share must be a number"),
        ("io_workers = 8", "io_workers = -1", "io_workers must be a whole number from 0 to"),
        ("cuda_graphs = true", "cuda_graphs = 'yes'", "cuda_graphs must be true or false"),
        ("cuda_graphs = true\n", "", "'cuda_graphs' is missing"),
        (LEVEL, f"{LEVEL}\nsample = 5", r"levels.sample must be a text, found 5$"),
        (LEVEL, 'norm_act = "native"', "levels must be a table with the key 'default'"),
        ("[measured]", "[measured]\nspeed = 'guess'", "measured must be"),
        ('title = "', "title = ", "is not valid TOML"),
        ("strip_rows = 256", f"strip_rows = {'9' * 5000}", "is not valid TOML: Exceeds the limit"),
        ("strip_rows = 256", f"strip_rows = 0x{'f' * 5000}", "strip_rows must be a whole number from 1 to"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, reason: str) -> None:
    text = presets.export("h200")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=reason) as error:
        presets.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_imports_neither_torch_nor_the_rest_of_tvae() -> None:
    code = (
        "import sys, tvae.presets as p; p.choose('cuda', (9, 0)); p.names()\n"
        "print([m for m in sys.modules if m in ('torch', 'numpy') or m.startswith(('tvae.pipeline', 'tvae.cli'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
