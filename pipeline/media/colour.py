"""Colour: what the tags mean, what to assume without them, and the conversion between YUV and RGB."""

from __future__ import annotations

from tvae.pipeline.media.spec import Colour

__all__ = ["parse_colour"]


def parse_colour(text: str) -> Colour | None:
    """The value of ``--color``: "keep" (None), or "bt709", "bt601", "bt2020", each with ":tv" or ":pc" if wanted."""
    raise NotImplementedError
