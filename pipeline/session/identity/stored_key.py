"""Identity of a model that lies on disk, from its files alone: found without importing what its class needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tvae.pipeline.session.identity.sources import import_closure_digest

__all__ = ["stored_key"]


def stored_key(module: str, facts: Mapping[str, Any]) -> str | None:
    """The key of its graphs: module is that of its class, facts are its name, configuration and weights' shapes. None
    where the class has no readable source."""
    sources = import_closure_digest(module)
    if sources is None:
        return None
    doc = {"sources": sources, **facts}
    return hashlib.sha256(json.dumps(doc, sort_keys=True).encode()).hexdigest()
