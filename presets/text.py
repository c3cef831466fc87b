"""A preset as TOML text, with the comments of those that are shipped."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tvae.presets.loader import Preset

__all__ = ["text_of"]

_VALUES = (
    *("title", "description", "dtype", "memory_layout", "cudnn_benchmark", "cuda_graphs"),
    *("strip_rows", "memory_share", "io_workers", "queue_frames"),
)


def text_of(preset: Preset) -> str:
    """What :func:`tvae.presets.load` reads as this preset; its name is that of the file it is put into."""
    head, levels = Path(__file__).with_name("cpu.toml").read_text(encoding="utf-8").split("[levels]\n")
    comment = re.search(r"^# Which of the values.*$", levels, re.MULTILINE)
    head = head.replace("# tvae preset 'cpu': CPU.", f"# tvae preset '{preset.name}': {_one_line(preset.title)}.")
    head = head.replace("preset export cpu", f"preset export {preset.name}")
    for key in _VALUES:
        line = f"{key} = {_value(getattr(preset, key))}".replace("\\", r"\\")
        head, count = re.subn(rf"^{key} = .*$", line, head, flags=re.MULTILINE)
        assert count == 1, key
    lines = [
        "[levels]",
        *(f"{name} = {_value(level)}" for name, level in preset.levels.items()),
        "",
        comment[0] if comment else "",
        "[measured]",
        *(f"{name} = {_value(basis)}" for name, basis in preset.measured.items()),
    ]
    return head + "\n".join(lines) + "\n"


def _value(value: str | bool | float) -> str:
    """TOML's form, which for these types is JSON's."""
    return json.dumps(_one_line(value) if isinstance(value, str) else value, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Control characters have no place in a title."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
