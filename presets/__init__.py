"""Hardware presets (`*.toml`) and the built-in VAE (`builtin/`): data and its loader, importing nothing of tvae.

`load("h200")`, `load("mine.toml")`, `names()`, `export("h200")`, and `choose(...)` for what `auto` means.
"""

from __future__ import annotations

from tvae.presets.loader import Preset, choose, load, names, user_folder
from tvae.presets.text import export

__all__ = ["Preset", "choose", "export", "load", "names", "user_folder"]
