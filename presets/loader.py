"""Reading presets: TOML files that hold the choices for one kind of hardware.

Built-in presets lie beside this file and say only what differs from `defaults.toml`; any other file has every value. A
file `<name>.toml` in the user's own folder (:func:`user_folder`) adds a preset or takes the place of the built-in one
of that name, for `auto` too. Everything wrong with a preset is a `ValueError` of one line that names the file and the
key; whether there are the operations and levels that it names is for the kernels to say. Nothing here imports torch or
anything else of tvae.
"""

from __future__ import annotations

import codecs
import dataclasses
import difflib
import os
import re
import reprlib
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILT_IN = ("cpu", "rtx30", "a100", "rtx40", "rtx50", "b200", "h100", "h200")
DTYPES = ("float32", "bfloat16", "float16")
MEMORY_LAYOUTS = ("contiguous", "channels_last")
MAX_IO_WORKERS_WINDOWS = 2
"""Starting threads and processes is dear on Windows, and antivirus scans what they open."""

RANGES = {"strip_rows": (1, 1 << 20), "io_workers": (0, 1024), "queue_frames": (1, 1 << 16), "processes": (1, 16)}
_LATER = {"processes": 1}
"""Keys that are newer than presets which users have: what they mean where they are left out."""
MOST_BYTES = 1 << 20
"""Of a preset's file."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?:^|[{{,\[])\s*{_PART}(?:[ \t]*\.[ \t]*{_PART}){{32}}", re.MULTILINE)
_HERE = Path(__file__).parent
GIB = 1024**3
H200_FREE = 100 * GIB
"""An H100 has 80 GB (94 GB as NVL), an H200 141 GB: more than this free is an H200."""
SMALL_FREE = 6 * GIB
SMALL_STRIP = 16
"""With less than `SMALL_FREE` free, strips are at most this high; below 8 rows the launches cost more than the work."""


@dataclass(frozen=True)
class Preset:
    """The choices for one kind of hardware. Numerical results do not depend on any of them but `dtype`."""

    name: str
    title: str
    description: str
    dtype: str
    """Type of the computation: float32, bfloat16 or float16."""
    memory_layout: str
    """Of activations: contiguous (NCHW) or channels_last (NHWC)."""
    cudnn_benchmark: bool | str
    """Let cuDNN try its algorithms on each new shape; ``steps``: in the steps of long clips only."""
    cuda_graphs: bool
    """Record runs of one shape as a CUDA graph and replay it."""
    strip_rows: int
    """Height of a strip in latent rows, at least 1, for both sides; on a CPU, strips of small values are higher."""
    memory_share: float
    """Share of the memory that is free now that a plan may use, above 0 and at most 1."""
    io_workers: int
    """Threads that read images, and as many that write results, beside the one that computes; 0: there is no other."""
    queue_frames: int
    """Frames, at least 1, that may wait between two stages; limits memory, not speed."""
    processes: int
    """That share a GPU, at least 1, where many small pictures are encoded."""
    levels: dict[str, str]
    """Kernel level (native, script, compile, triton, cuda) by operation; `default` is for all that are not named."""
    measured: dict[str, str]
    """Which of these values were measured, and on what. The others are estimates."""
    source: Path
    """The file it was read from."""

    def to_json(self) -> dict[str, Any]:
        """All values as JSON has them; `source` is a text."""
        return {**dataclasses.asdict(self), "source": str(self.source)}


def load(name: str | Path) -> Preset:
    """The preset of this name, or from this path (anything that ends in `.toml`).

    Raises `ValueError` for an unknown name (with the names there are), an unreadable file, a wrong or missing value.
    """
    path = _path(str(name))
    data = _read(path)
    if is_shipped(path):
        data = _over(_read(_HERE / "defaults.toml"), data)
    return _check(path, _LATER | data)


def names() -> list[str]:
    """Names that :func:`load` knows: the built-in ones, then the user's own."""
    try:
        own = sorted(path.stem for path in user_folder().glob("*.toml"))
    except OSError:  # a folder that may not be read holds no presets for us
        own = []
    return [*BUILT_IN, *(name for name in own if name not in (*BUILT_IN, "auto"))]


def choose(
    device_type: str, compute_capability: tuple[int, int] | None = None, free_memory: int | None = None
) -> Preset:
    """The preset that `auto` stands for on this device.

    `device_type` is torch's (`cuda`, `cpu`, `mps`, `xpu`); `compute_capability` is that of a CUDA card, such as
    `(9, 0)`; `free_memory` is its free bytes now (not its total: other programs may hold the rest). A CUDA card that no
    preset is for gets `rtx30`, the most modest one, and float32 if it has no bfloat16 (before 8.0). With less than
    6 GiB free, strips are lower. Raises `ValueError` if the user's own file of that name is broken.
    """
    preset = load(_name_for(device_type, compute_capability, free_memory))
    if device_type == "cuda" and compute_capability is not None and compute_capability < (8, 0):
        preset = dataclasses.replace(preset, dtype="float32")
    if free_memory is not None and free_memory < SMALL_FREE:
        preset = dataclasses.replace(preset, strip_rows=min(preset.strip_rows, SMALL_STRIP))
    return preset


def is_shipped(path: Path) -> bool:
    """Is it one of those beside this file, which leave out what `defaults.toml` says?"""
    return _HERE.resolve() in (path.parent.resolve(), path.resolve().parent)


def user_folder() -> Path:
    """The folder of the user's own presets. It need not exist."""
    import platformdirs

    return Path(platformdirs.user_config_dir("tvae", appauthor=False)) / "presets"


def _name_for(device_type: str, capability: tuple[int, int] | None, free_memory: int | None) -> str:
    if device_type != "cuda":
        return "cpu"
    if capability == (9, 0):
        return "h200" if free_memory is not None and free_memory > H200_FREE else "h100"
    if capability in ((8, 0), (8, 9)):
        return "a100" if capability == (8, 0) else "rtx40"
    by_major = {10: "b200", 12: "rtx50"}
    return by_major.get(capability[0], "rtx30") if capability else "rtx30"


def _path(name: str) -> Path:
    if name.endswith(".toml"):
        return Path(os.path.expanduser(name))
    if name in names():
        own = user_folder() / f"{name}.toml"
        return own if own.is_file() else _HERE / f"{name}.toml"
    if name == "auto":
        raise ValueError("'auto' is no preset of its own: choose() finds the one for a device")
    hint = _hint(name, names())
    raise ValueError(f"no preset '{name}'{hint} (there are: auto, {', '.join(names())}, or a path to a .toml file)")


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # opening a fifo would wait
        raise ValueError(f"cannot read preset '{path}': it is not a file")
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read preset '{path}': {error.strerror or error}") from error
    if len(text) > MOST_BYTES:
        raise ValueError(f"preset '{path}' has more than {MOST_BYTES} bytes")
    try:
        return parse_toml(decoded(text))
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits, too
        raise ValueError(f"preset '{path}' is not valid TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML whose keys have 32 parts at most. Raises ValueError; RecursionError for values that lie too deep."""
    if _LONG_KEY.search(text):  # the parser takes memory by the square of their number
        raise ValueError("a key has more than 32 parts")
    return tomllib.loads(text)


def decoded(text: bytes) -> str:
    """A preset's text: UTF-8, with its mark or without, or UTF-16 with its mark, as Windows PowerShell's ``>`` writes
    it. ValueError for all else."""
    try:
        return text.decode("utf-16" if text.startswith(_UTF16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not valid in {error.encoding}; save it as UTF-8") from error


def _over(defaults: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The data, and what it leaves out; of tables line by line."""
    tables = {key for key, value in data.items() if isinstance(value, dict) and key in defaults}
    return {**defaults, **data, **{key: {**defaults[key], **data[key]} for key in tables}}


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _shown(value: Any) -> str:
    """A value in short."""
    try:
        return reprlib.repr(value)
    except ValueError:  # 0xfff…: Python writes no number with thousands of digits
        return "a number with thousands of digits"


def _check(path: Path, data: Mapping[str, Any]) -> Preset:
    """The preset that `data` describes; `ValueError` names the first thing wrong with it."""
    keys = {f.name for f in dataclasses.fields(Preset)} - {"name", "source"}
    for key in data:
        if key not in keys:
            raise ValueError(f"preset '{path}': unknown key '{key}'{_hint(key, keys)}")
    for key in sorted(keys - set(data)):
        raise ValueError(f"preset '{path}': '{key}' is missing")

    def need(key: str, fits: bool, wanted: str) -> None:
        if not fits:
            raise ValueError(f"preset '{path}': {key} must be {wanted}, found {_shown(data[key])}")

    for key in ("title", "description"):
        need(key, isinstance(data[key], str), "a text")
    need("dtype", data["dtype"] in DTYPES, f"one of {', '.join(DTYPES)}")
    need("memory_layout", data["memory_layout"] in MEMORY_LAYOUTS, f"one of {', '.join(MEMORY_LAYOUTS)}")
    search = data["cudnn_benchmark"]
    need("cudnn_benchmark", isinstance(search, bool) or search == "steps", "true, false or 'steps'")
    need("cuda_graphs", isinstance(data["cuda_graphs"], bool), "true or false")
    for key, (least, most) in RANGES.items():
        need(key, type(data[key]) is int and least <= data[key] <= most, f"a whole number from {least} to {most}")
    share = data["memory_share"]
    need("memory_share", type(share) in (int, float) and 0 < share <= 1, "a number above 0, at most 1")
    _check_levels(path, data["levels"])
    measured = data["measured"]
    fits = isinstance(measured, dict) and set(measured) <= keys and all(isinstance(v, str) for v in measured.values())
    need("measured", fits, "a table of texts by the names of this preset's values")

    workers = min(data["io_workers"], MAX_IO_WORKERS_WINDOWS) if sys.platform == "win32" else data["io_workers"]
    return Preset(**{**data, "memory_share": float(share), "io_workers": workers}, name=path.stem, source=path)


def _check_levels(path: Path, levels: Any) -> None:
    """A table of texts by operation, with `default` for those that are not named."""
    if not isinstance(levels, dict) or "default" not in levels:
        raise ValueError(f"preset '{path}': levels must be a table with the key 'default', found {_shown(levels)}")
    for name, level in levels.items():
        if not isinstance(level, str):
            raise ValueError(f"preset '{path}': levels.{name} must be a text, found {_shown(level)}")
