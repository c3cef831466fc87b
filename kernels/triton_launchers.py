"""Triton's launchers, loaded one at a time, and each kept apart from the next.

Triton 3.5 and 3.6 compile a small extension module for each list of argument types, and call all of them
``__triton_launcher``. Python knows such modules by name: where a file is loaded a second time, the module of that name
is given, with the file's functions put in the place of its own. A thread that loads another launcher at that moment
would find a function in it that takes other arguments, and Triton would keep it for every launch of the kernel.

Imports no Triton, so that its test needs none.
"""

from __future__ import annotations

import threading
from functools import wraps
from types import SimpleNamespace
from typing import Any

__all__ = ["load_apart"]

_LOADER = "_load_module_from_path"


def load_apart(place: Any) -> None:
    """Have Triton's own module for builds (triton/runtime/build.py) load one module at a time, and give what that holds
    at the moment. Nothing where a release has no such function."""
    original = getattr(place, _LOADER, None)
    if original is None or hasattr(original, "apart"):
        return
    loading = threading.Lock()

    @wraps(original)
    def load(name: str, path: str) -> SimpleNamespace:
        with loading:
            return SimpleNamespace(**vars(original(name, path)))

    load.apart = True  # type: ignore[attr-defined]
    setattr(place, _LOADER, load)
