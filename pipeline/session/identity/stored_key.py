"""Identity of a model that lies on disk, from its files alone: found without importing what its class needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvae.pipeline.session.identity.sources import import_closure_digest

__all__ = ["home_of", "stored_key"]


def stored_key(module: str, facts: Mapping[str, Any]) -> str | None:
    """The key of its graphs: module is that of its class, facts are its name, configuration and weights' shapes. None
    where the class has no readable source."""
    sources = import_closure_digest(module)
    if sources is None:
        return None
    doc = {"sources": sources, **facts}
    return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()


def home_of(class_name: str) -> str:
    """Where diffusers defines an autoencoder, found without importing diffusers: the file that holds the class."""
    spec = find_spec("diffusers")
    folder = Path(spec.origin).parent / "models" / "autoencoders" if spec and spec.origin else None
    for file in sorted(folder.glob("*.py")) if folder else []:
        if f"\nclass {class_name}(" in file.read_text(encoding="utf-8"):
            return f"diffusers.models.autoencoders.{file.stem}"
    return "diffusers"
