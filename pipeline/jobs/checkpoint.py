"""Where the computing of a clip stands after some of its parts, kept beside them, so that an interrupted run goes on.

What later frames need of earlier ones is little: the caches of a streaming model, and the state of the generator that
latents are drawn with. With both restored, the rest is computed as if nothing had happened, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tvae.pipeline.files.atomic import replacing, write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.content_checksum import CHECKSUM, of_tensors
from tvae.pipeline.files.tensor_write import save_file
from tvae.pipeline.latents.tensor_file import own_memory

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream

__all__ = ["Checkpoint", "Checkpoints", "goes_on"]

SHARE = 1 / 20
"""Of a run's time that may go into keeping checkpoints. The caches of a large model are some gigabytes."""

_BYTES_A_SECOND = 1 << 28
"""That the first is taken to be kept with: Wan 2.1's 2.4 GiB at 1280x720 took some 7 s (16 cores, a virtual disk)."""

GENERATOR, CACHE, COUNTS = "generator", "cache.{:04d}", ("parts", "frames", "chunks")


@dataclass(frozen=True)
class Checkpoint:
    """After ``parts`` parts, which hold ``frames`` frames. Tensors are on the CPU."""

    parts: int
    frames: int
    chunks: int
    """That went through the model for them."""
    caches: Sequence[Tensor] = field(default_factory=tuple)
    generator: Tensor | None = None
    """``torch.Generator.get_state()``."""


class Checkpoints:
    """The file that holds the latest checkpoint. ``fingerprint`` says what of; another's is no use."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self._fingerprint = path, fingerprint
        self._took: float | None = None
        self._last, self._taking = time.monotonic(), 0.0
        self._under_way = False

    def read(self) -> Checkpoint | None:
        """None where there is none of ours, or it is damaged: the work starts from the beginning."""
        try:
            open_regular(self.path).close()  # safetensors would wait for what a fifo brings
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            if metadata.get("fingerprint") != self._fingerprint or metadata[CHECKSUM] != of_tensors(tensors, metadata):
                return None
            parts, frames, chunks = (int(metadata[name]) for name in COUNTS)
        except (OSError, SafetensorError, KeyError, ValueError):
            return None
        generator = tensors.pop(GENERATOR, None)
        return Checkpoint(parts, frames, chunks, [tensors[name] for name in sorted(tensors)], generator)

    def due(self, size: int) -> bool:
        """Whether it is time for the next, with caches of so many bytes: seldom enough that keeping them takes a small
        share of the run, the first one among them. None is due between ``caches_of`` and ``write``."""
        took = size / _BYTES_A_SECOND if self._took is None else self._took
        return not self._under_way and time.monotonic() - self._last >= took / SHARE

    def caches_of(self, stream: ClipStream | None) -> list[Tensor] | None:
        """What the next checkpoint keeps of a stream, nothing where there is none; None if it is not due. ``write``
        follows."""
        if not self.due(0 if stream is None else stream.nbytes):
            return None
        begin = time.monotonic()
        caches = [] if stream is None else stream.saved()
        self._taking, self._under_way = time.monotonic() - begin, True
        return caches

    def write(self, checkpoint: Checkpoint) -> None:
        """Replaces the one before; its parts must be written already. OutputError for a full disk."""
        begin = time.monotonic()
        tensors = {CACHE.format(n): own_memory(cache) for n, cache in enumerate(checkpoint.caches)}
        if checkpoint.generator is not None:
            tensors[GENERATOR] = checkpoint.generator
        metadata = {"fingerprint": self._fingerprint} | {name: str(getattr(checkpoint, name)) for name in COUNTS}
        try:
            with replacing(self.path) as temporary:
                save_file(tensors, temporary, metadata)
        except (OSError, SafetensorError) as error:
            raise write_error(self.path, error) from error
        self._last = time.monotonic()
        self._took, self._under_way = self._last - begin + self._taking, False


def goes_on(frames: int) -> str:
    """What to tell."""
    return f"continues after the {frames} frames that an interrupted run had done"
