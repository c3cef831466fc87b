"""The CUDA C++ sources, compiled by NVRTC for the card at hand; the result is kept on disk for the next process."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tvae.kernels import cache
from tvae.kernels.cuda.answers import value_of
from tvae.kernels.kept_bytes import keep, kept

__all__ = ["PROGRAMS", "Source", "cache_folder", "compiled", "missing", "source"]


class Source(NamedTuple):
    """A program: its files, the names of its kernels, and whether it speaks to one generation of cards alone."""

    parts: tuple[str, ...]
    kernels: tuple[str, ...]
    specific: bool = False


_RING = ("norm_plain", "norm_silu", "stats", "add_bias", "add_bias_stats", "add_residual", "add_residual_stats")

PROGRAMS = {
    "bulk": Source(("common", "work", "barriers", "bulk", "operations"), _RING),
    "async": Source(("common", "work", "async", "operations"), _RING),
    "hopper_conv": Source(("common", "barriers", "hopper", "hopper_conv"), ("conv",), specific=True),
}
"""By name: the two forms of the ring, and a convolution."""


def cache_folder() -> Path:
    """Where compiled programs are kept. It can be deleted at any time."""
    return cache.cache_folder("kernels")


@functools.cache
def missing() -> str | None:
    """Why nothing can be compiled on this machine, or None. NVRTC of a wheel is not loaded to know."""
    try:
        from cuda.bindings import driver  # noqa: F401

        _compiler()
    except ImportError as error:
        return f"{error.name or error} is not installed"
    except Exception as error:  # the bindings find no library, or one that does not fit them
        return f"NVRTC cannot be loaded: {error}"
    return None


@functools.cache
def source(name: str) -> str:
    """The text of a program."""
    folder = files("tvae.kernels.cuda")
    return "\n".join(folder.joinpath(f"{part}.cu").read_text("utf-8") for part in PROGRAMS[name].parts)


def compiled(name: str, capability: tuple[int, int], macros: Sequence[tuple[str, int]]) -> bytes:
    """The program as a cubin for cards of a compute capability: from the disk, or from NVRTC and then kept there.

    macros: name and value of each that the source wants set. Raises RuntimeError with what NVRTC says where the source
    does not compile, as for an architecture unknown to it.
    """
    text, arch = source(name), "sm_{}{}".format(*capability) + ("a" if PROGRAMS[name].specific else "")
    folder = cache_folder()
    if not cache.is_private(folder):
        return _compile(text, macros, arch)
    path = folder / f"{_key(text, *macros, arch, _compiler())}.cubin"
    made = kept(path)
    if made is None:
        made = _compile(text, macros, arch)
        keep(path, made)
    return made


def _compile(text: str, macros: Sequence[tuple[str, int]], arch: str) -> bytes:
    from cuda.bindings import nvrtc

    defined = [f"--define-macro={name}={value}" for name, value in macros]
    options = [option.encode() for option in ("--std=c++17", f"--gpu-architecture={arch}", *defined)]
    program = value_of(nvrtc.nvrtcCreateProgram(text.encode(), b"tvae", 0, [], []))
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if error.value:
            said = bytearray(value_of(nvrtc.nvrtcGetProgramLogSize(program)))
            value_of(nvrtc.nvrtcGetProgramLog(program, said))
            raise RuntimeError(f"{error.name}: {bytes(said).decode(errors='replace')}")
        made = bytearray(value_of(nvrtc.nvrtcGetCUBINSize(program)))
        value_of(nvrtc.nvrtcGetCUBIN(program, made))
        return bytes(made)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def _compiler() -> str:
    """Which NVRTC compiles: the version of its wheel, which the bindings look for first; without one, what the library
    says of itself. That has to be found and loaded, which takes a tenth of a second."""
    import cuda.bindings

    release = cuda.bindings.__version__.partition(".")[0]
    wheel = "nvidia-cuda-nvrtc" if int(release) > 12 else f"nvidia-cuda-nvrtc-cu{release}"
    try:
        return f"{wheel} {version(wheel)}"
    except PackageNotFoundError:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        return f"NVRTC {major}.{minor}"


def _key(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
