"""What is to be the same on all nodes: tvae itself, and the libraries that compute."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from tvae import kernels, pipeline, presets

__all__ = ["differences", "identity"]

_LIBRARIES = ("torch", "diffusers")
_SUFFIXES = (".py", ".cu", ".toml")


@cache
def identity() -> dict[str, str]:
    """Of this Python: a checksum of tvae's sources, and the versions of libraries. Imports none of those."""
    found = {"tvae": _sources()}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library).partition("+")[0]  # builds for GPUs and for CPUs go together
        except metadata.PackageNotFoundError:
            found[library] = "none"
    return found


def differences(there: dict[str, str], here: dict[str, str]) -> str:
    """What is another one there, in words; empty where nothing is."""
    names = [name for name in here if there.get(name) != here[name]]
    return ", ".join(f"{name} {there.get(name, 'none')} (here {here[name]})" for name in names)


def _sources() -> str:
    found = hashlib.sha256()
    for package in (kernels, pipeline, presets):
        for root in map(Path, package.__path__):
            for path in sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES):
                found.update(f"{package.__name__}/{path.relative_to(root).as_posix()}\n".encode())
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]
