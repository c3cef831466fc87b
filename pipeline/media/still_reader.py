"""A picture that is decoded already, read as one frame."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from tvae.pipeline.media.spec import Frame, MediaInfo

__all__ = ["StillReader"]


class StillReader:
    """A Reader of one frame."""

    def __init__(self, info: MediaInfo, rgb: np.ndarray, warnings: list[str]) -> None:
        self.info, self.warnings, self._rgb = info, warnings, rgb

    def __iter__(self) -> Iterator[Frame]:
        yield Frame(self._rgb)

    def count(self) -> int:
        """One."""
        return 1

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""
