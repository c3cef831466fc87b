"""Captured graphs on disk, so that a model is traced once per machine and not once per run.

One JSON file per graph, without weights, below the user's cache folder; safe to delete at any time. A file that cannot
be read, or was written by another version, counts as absent. The key of a graph names everything that its capture
depended on: the sources of the model and of our own capture, library versions, configuration, weights' names and
shapes, side, types and fixed dimensions.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import platformdirs
import torch

from tvae.pipeline.engine.graph import Graph
from tvae.pipeline.outputs import Spec, importable

__all__ = ["GraphStore", "class_source_digest", "graph_key"]

_OWN_SOURCES = (
    "engine/capture.py",
    "engine/graph.py",
    "engine/passes",
    "models/reference.py",
    "models/seedvr2",
    "models/steps",
    "outputs.py",
)


class GraphStore:
    """Graphs of one key. Several may share it: a model takes different paths at different sizes."""

    def __init__(self, key: str | None) -> None:
        """key: from ``graph_key``; None keeps nothing on disk."""
        self._key = key

    def load(self) -> list[tuple[Graph, Spec]]:
        """Every readable graph of this key."""
        found = []
        for path in sorted(_folder().glob(f"{self._key}-*.json")) if self._key else []:
            try:
                doc = json.loads(path.read_text(encoding="utf-8"))
                found.append((Graph.from_json(doc["graph"]), doc["spec"]))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # written by a crash or by another version: it will be captured anew
        return found

    def save(self, graph: Graph, spec: Spec) -> None:
        """Keep a graph. A cache that cannot be written is not an error, and neither is a class of no address."""
        if self._key is None or not importable(spec):
            return
        try:
            text = graph.to_json()
            name = f"{self._key}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
            folder = _folder()
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, suffix=".tmp", delete=False) as file:
                json.dump({"graph": text, "spec": spec}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, folder / name)
        except (OSError, TypeError):
            return


def graph_key(source_digest: str | None, facts: Mapping[str, Any]) -> str | None:
    """Digest of everything a capture depends on; None when the class has no readable source."""
    if source_digest is None:
        return None
    doc = {"model": source_digest, "tvae": _own_digest(), "torch": torch.__version__, **facts}
    return hashlib.sha256(json.dumps(doc, sort_keys=True, default=str).encode()).hexdigest()[:32]


@lru_cache
def class_source_digest(module: str) -> str | None:
    """Digest of the file that defines a class and of the version of the package it is in. Nothing is imported.

    module: dotted name, such as ``diffusers.models.autoencoders.autoencoder_kl``.
    """
    root = module.partition(".")[0]
    if root == "tvae":  # our own models are part of every key
        return _own_digest()
    try:
        spec = find_spec(root)
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin)
        if module != root:
            path = path.parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        text = path.read_bytes()
    except (OSError, ValueError, ImportError):
        return None
    try:
        version = importlib.metadata.version(root)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    return hashlib.sha256(version.encode() + text).hexdigest()


@lru_cache
def _own_digest() -> str:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for name in _OWN_SOURCES:
        path = here / name
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("tvae")) / "graphs"
