"""A preset as TOML text with a comment on every value, as `defaults.toml` has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tvae.presets.loader import Preset, decoded, is_shipped, load

__all__ = ["export", "text_of"]

_HEAD = """\
# tvae preset '{name}': {title}.
#
# To change it: `tvae preset export {name} > my.toml`, edit, then `--preset my.toml`; or put the file into the folder
# that `tvae preset list` names. Only dtype changes results; the other values change time and memory.

"""


def export(name: str | Path) -> str:
    """TOML text of a preset, with comments: the start for one's own."""
    preset = load(name)
    return text_of(preset) if is_shipped(preset.source) else decoded(preset.source.read_bytes())


def text_of(preset: Preset) -> str:
    """What :func:`tvae.presets.load` reads as this preset; its name is that of the file it is put into."""
    _, _, commented = Path(__file__).with_name("defaults.toml").read_text(encoding="utf-8").partition("\n\n")
    lines = [f"{key} = {_value(getattr(preset, key))}" for key in ("title", "description")] + [""]
    table = ""
    for line in commented.splitlines():
        key = line.partition(" = ")[0]
        if line.startswith("["):
            table = line.strip("[]")
            lines += [line, *(f"{name} = {_value(value)}" for name, value in getattr(preset, table).items())]
        elif not re.match(r"\w+ = ", line):
            lines.append(line)
        elif not table:
            lines.append(f"{key} = {_value(getattr(preset, key))}")
    return _HEAD.format(name=preset.name, title=_one_line(preset.title)) + "\n".join(lines) + "\n"


def _value(value: str | bool | float) -> str:
    """TOML's form, which for these types is JSON's."""
    return json.dumps(_one_line(value) if isinstance(value, str) else value, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Control characters have no place in a title."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
