"""Whether operations are under ``torch.autocast`` only where a ``torch.autocast`` says so: of these the exporter makes
regions. ``torch.set_autocast_enabled`` and ``torch.set_autocast_dtype`` it does not see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["said_precision"]


@contextmanager
def said_precision(device: torch.device) -> Iterator[Callable[[], None]]:
    """To be called before each operation of a model on this device, in this thread. Raises UnsupportedOp."""
    kinds = [*{device.type, "cpu"} - {"meta"}]
    said = _precision(kinds)

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            nonlocal said
            result = original(*args)
            said = _precision(kinds)
            return result

        return noted

    def check() -> None:
        if _precision(kinds) != said:
            why = "it switches autocast, or the type that it casts to, without `with torch.autocast(...)`: use that"
            raise UnsupportedOp("torch.set_autocast_enabled", "", why, whole=False)

    place: Any = torch.autocast
    with (
        instead(place, "__enter__", noting(place.__enter__)),
        instead(place, "__exit__", noting(place.__exit__)),
    ):
        yield check


def _precision(kinds: list[str]) -> list[torch.dtype | None]:
    """The type that operations on each of these kinds of devices are cast to."""
    return [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds]
