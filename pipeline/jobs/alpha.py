"""The alpha of a picture on its way around the VAE, which takes colours alone."""

from __future__ import annotations

import numpy as np

from tvae.pipeline.caches.pixels import split_alpha
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.reading import Source

__all__ = ["Alpha", "with_alpha"]

_OPAQUE = 255


class Alpha:
    """Of one picture. ``levels``: uint8 [h, w] without the picture's padding; None where it has none, or all of it is
    opaque."""

    levels: np.ndarray | None = None

    def taken_off(self, source: Source, picture: np.ndarray) -> np.ndarray:
        """What the VAE gets of a picture [H, W, 3] or [H, W, 4]: [H, W, 3]."""
        if picture.shape[2] == 3:
            return picture
        colours, alpha = split_alpha(picture)
        alpha = restore(alpha, source.geometry)
        self.levels = None if (alpha == _OPAQUE).all() else alpha
        return colours


def with_alpha(colours: np.ndarray, alpha: np.ndarray | None) -> np.ndarray:
    """uint8 [H, W, 3], and with alpha [H, W] uint8 [H, W, 4]."""
    return colours if alpha is None else np.dstack([colours, alpha])
