"""Digests of the source files that a model's classes come from, and of tvae's own.

An installed package counts by its version and by the files of the classes themselves. Of a package that is not
installed (a research repository, a script and the files beside it) every Python file counts, and so do the packages of
that kind that it imports.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["home_of", "is_library", "own_digest", "package_version", "source_digest", "stored_key", "versions"]

_TVAE = Path(__file__).parents[3]
_OWN = ("pipeline/engine", "pipeline/models", "pipeline/session")
"""Folders of tvae whose code decides what a graph holds."""
_MOST_FILES = 2000
"""Files of a package that are read; a larger one has no digest."""
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)


def versions() -> dict[str, str]:
    """Return the versions that every graph depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "diffusers": package_version("diffusers"),
    }


@lru_cache(maxsize=256)
def package_version(package: str) -> str:
    """Return the version of an installed package, or ``none``."""
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "none"


@lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """Return whether a module belongs to PyTorch, NumPy or Python, which count by their versions."""
    root = module.partition(".")[0]
    return root in ("torch", "numpy") or root in sys.stdlib_module_names


def source_digest(modules: Iterable[str]) -> str | None:
    """Return a digest of the sources of modules of this process; None where one has no readable source."""
    parts = sorted({name for name in modules if not is_library(name)})
    digests = [_module_digest(name) for name in parts]
    if None in digests:
        return None
    return hashlib.sha256(json.dumps([parts, digests]).encode()).hexdigest()


@lru_cache(maxsize=1)
def own_digest() -> str:
    """Return a digest of tvae's version and of its sources that decide what a graph holds."""
    digest = hashlib.sha256(package_version("tvae").encode())
    for folder in _OWN:
        for path in _python_files(_TVAE / folder):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def home_of(class_name: str) -> str:
    """Return the module in which diffusers defines an autoencoder, without importing diffusers."""
    spec = find_spec("diffusers")
    folder = Path(spec.origin).parent / "models" / "autoencoders" if spec and spec.origin else None
    for file in sorted(folder.glob("*.py")) if folder else []:
        if f"\nclass {class_name}(" in file.read_text(encoding="utf-8"):
            return f"diffusers.models.autoencoders.{file.stem}"
    return "diffusers"


def stored_key(module: str, facts: Mapping[str, Any]) -> str | None:
    """Return the identity of a model on disk, without importing its class; None where that has no readable source.

    Args:
        module: where the class is defined, from ``home_of``.
        facts: its name, configuration and the shapes of its weights.
    """
    spec = find_spec("diffusers")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    source = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    doc = {"versions": versions(), "source": source, **facts}
    return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=1024)
def _module_digest(name: str) -> str | None:
    """Return a digest of a module's file, or of its whole package where that is not installed."""
    root = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or not Path(file).is_file():
        return None
    digest = hashlib.sha256(package_version(root).encode() + Path(file).read_bytes())
    if not _is_installed(root, Path(file)):
        files = _own_files(root, Path(file))
        if len(files) > _MOST_FILES:
            return None
        for path in files:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _own_files(root: str, file: Path) -> list[Path]:
    """Return the files of a package that is not installed, and of others of that kind that it imports."""
    files: dict[Path, None] = {}
    pending, seen = [(root, file)], set[str]()
    while pending and len(files) <= _MOST_FILES:
        name, origin = pending.pop()
        seen.add(name)
        for path in _files_of(name, origin):
            if path in files:
                continue
            files[path] = None
            for imported in {word.decode() for word in _IMPORT.findall(path.read_bytes())} - seen:
                seen.add(imported)
                if (place := _own_origin(imported)) is not None:
                    pending.append((imported, place))
    return sorted(files)


def _files_of(root: str, file: Path) -> list[Path]:
    """Return the files of the top-level package that a file belongs to, or those beside a single file."""
    packages = [parent for parent in file.parents if parent.name == root]
    return _python_files(packages[-1]) if packages else sorted(file.parent.glob("*.py"))


def _own_origin(name: str) -> Path | None:
    """Return the file of a top-level module that is neither a library's nor installed."""
    if is_library(name):
        return None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    file = Path(spec.origin) if spec is not None and spec.origin else None
    return file if file is not None and file.suffix == ".py" and not _is_installed(name, file) else None


def _python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _is_installed(root: str, file: Path) -> bool:
    """Return whether a file belongs to Python or to an installed package; one installed as editable does not count."""
    if any(part in ("site-packages", "dist-packages") for part in file.parts):
        return True
    if str(file).startswith(sysconfig.get_paths()["stdlib"]):
        return True
    try:
        return file.is_relative_to(Path(str(importlib.metadata.distribution(root).locate_file(root))))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False
