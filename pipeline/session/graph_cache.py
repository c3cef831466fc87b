"""Captured graphs on disk, so that a model is traced once per machine and not once per run.

One JSON file per graph, without weights, below the user's cache folder; safe to delete at any time. The key of a graph
names everything that its capture depended on: the model's identity, our own sources, the libraries' versions, side,
types, fixed dimensions and the caller's settings. A file's name ends with a digest of its content, so that a damaged
one is known as such; it counts as absent, and is captured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvae.kernels.cache import cache_folder, is_private
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.files.checked import read_bytes
from tvae.pipeline.session.identity.sources import own_digest, versions
from tvae.pipeline.session.outputs import Spec, check_spec, storable

__all__ = ["GraphStore", "fits_weights", "graph_key"]

_log = logging.getLogger("tvae")
MOST_BYTES = 256 << 20
"""Of a graph; the largest are some megabytes."""
_MOST_VALUES = 1 << 18
"""Of constants: more take longer to write as text, and to read, than a capture takes."""
_told: set[str] = set()


class GraphStore:
    """Graphs of one key. Several may share it: a model takes different paths at different sizes."""

    def __init__(self, key: str | None) -> None:
        """key: from ``graph_key``; None keeps nothing on disk."""
        self._key = key

    def load(self, fits: Callable[[Graph, Spec], bool] = lambda _graph, _spec: True) -> list[tuple[Graph, Spec]]:
        """Every readable graph of this key that fits the model. Of others a warning says so, once."""
        found = []
        folder = _folder()
        for path in sorted(folder.glob(f"{self._key}-*.json")) if self._key and is_private(folder) else []:
            try:
                text = read_bytes(path, MOST_BYTES).decode()
                if path.stem != _name(str(self._key), text):
                    raise ValueError("its content is not what was written")
                doc = json.loads(text)
                graph = Graph.from_json(doc["graph"])
                ranks = [len(graph.nodes[i].meta.shape) for i in graph.outputs]
                spec = check_spec(doc["spec"], ranks) if doc["spec"] != {} else {}
                if not fits(graph, spec):
                    raise ValueError("it does not fit the model")
                found.append((graph, spec))
            except Exception as error:  # whatever is wrong with a file of the cache, the model is captured again
                if path.name not in _told:
                    _told.add(path.name)
                    why = repr(str(error))[1:-1]  # with words of the file, whoever wrote it
                    _log.warning("captured graph '%s' cannot be used (%s); the model is captured again", path.name, why)
        return found

    def save(self, graph: Graph, spec: Spec) -> None:
        """Keep a graph. A cache that cannot be written is not an error, and neither are a class of no address and large
        constants."""
        values = sum(constant.numel() for constant in graph.constants.values())
        if self._key is None or not storable(spec) or values > _MOST_VALUES:
            return
        temporary: Path | None = None
        try:
            text = json.dumps({"graph": graph.to_json(), "spec": spec})
            folder = _folder()
            if not is_private(folder):
                return
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, suffix=".tmp", delete=False) as file:
                temporary = Path(file.name)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folder / f"{_name(self._key, text)}.json")
        except (OSError, TypeError) as error:
            _log.info("a captured graph is not kept on disk: %s", error)
            if temporary is not None:
                temporary.unlink(missing_ok=True)


def graph_key(model: str, facts: Mapping[str, Any]) -> str:
    """Digest of everything a capture depends on. model: its identity; facts: what else the capture bakes in."""
    doc = {"model": model, "tvae": own_digest(), "libraries": versions(), **facts}
    return hashlib.sha256(json.dumps(doc, sort_keys=True, default=str).encode()).hexdigest()[:32]


def fits_weights(graph: Graph, weights: Mapping[str, Any], *, all_named: bool = True) -> bool:
    """Are the graph's weights these, by name and shape? all_named: no other name will do."""
    for node in graph.nodes:
        if node.kind == "param" and node.target not in graph.constants:
            weight = weights.get(node.target)
            if all_named if weight is None else tuple(weight.shape) != node.meta.shape:
                return False
    return True


def _name(key: str, text: str) -> str:
    return f"{key}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _folder() -> Path:
    return cache_folder("graphs")
