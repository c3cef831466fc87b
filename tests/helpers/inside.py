"""What a TiledVAE has prepared, for tests that look inside."""

from __future__ import annotations

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.prepared import Compiled
from tvae.pipeline.session.runner import Runner

__all__ = ["compiled_of", "runners_of"]


def compiled_of(tiled: TiledVAE) -> list[Compiled]:
    """The sides, and steps of sides, that it was asked for."""
    return [each for session in tiled._sessions.values() for each in session._sides._made.values()]


def runners_of(tiled: TiledVAE) -> list[Runner]:
    """The runs that it keeps."""
    return [ready.runner for session in tiled._sessions.values() for ready in session._runs._ready.values()]
