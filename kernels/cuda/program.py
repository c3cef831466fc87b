"""The CUDA C++ sources, compiled by NVRTC for the card at hand; the result is kept on disk for the next process."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import platformdirs

__all__ = ["NAMES", "cache_folder", "compiled", "source"]

NAMES = ("norm_plain", "norm_silu", "stats", "add_bias", "add_bias_stats", "add_residual", "add_residual_stats")
"""The kernels of a program."""

_ELF = b"\x7fELF"


def cache_folder() -> Path:
    """Where compiled programs are kept. It can be deleted at any time."""
    return Path(platformdirs.user_cache_dir("tvae", appauthor=False)) / "kernels"


@cache
def source(form: str) -> str:
    """The text of a program with the ring's form ``bulk`` or ``async``."""
    parts = ("common", form, "operations")
    return "\n".join(files("tvae.kernels.cuda").joinpath(f"{part}.cu").read_text("utf-8") for part in parts)


def compiled(form: str, element: int, stages: int, prefetch: int, arch: str) -> bytes:
    """The program as a cubin for an architecture such as ``sm_90``: from the disk, or from NVRTC and then kept there.

    Raises whatever NVRTC's wrapper raises where the source does not compile, as for an architecture unknown to it.
    """
    macros = {"ELEMENT": element, "STAGES": stages, "PREFETCH": prefetch}
    text = source(form)
    path = cache_folder() / f"{_key(text, *macros.items(), arch, _nvrtc_version())}.cubin"
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    if kept.startswith(_ELF):
        return kept
    made = _compile(text, macros, arch)
    _keep(path, made)
    return made


def _compile(text: str, macros: dict[str, int], arch: str) -> bytes:
    from cuda.core import Program, ProgramOptions

    defined = [(name, str(value)) for name, value in macros.items()]
    options = ProgramOptions(name="tvae", std="c++17", arch=arch, define_macro=defined)
    made: Any = Program(text, "c++", options).compile("cubin").code
    return bytes(made)


def _nvrtc_version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return major, minor


def _key(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _keep(path: Path, made: bytes) -> None:
    """Under its name only when complete. A folder that cannot be written costs the next process a second, no more."""
    part = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(made)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
