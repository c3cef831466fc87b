"""Frames into chunks, latents of steps into parts: nothing is lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, repeat

import numpy as np
import pytest
import torch

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.reading import Chunk
from tvae.pipeline.jobs.steps import LATENT_FRAMES, StepPart, in_steps, latents_in_steps


def frames(count: int) -> list[Chunk]:
    return [Chunk([np.full((1, 1, 3), n, np.uint8)], [10 * n], [10]) for n in range(count)]


SIZES = [(1, 4, 4, 4), (4, 4), (1, 8), (1, 1, 1), (9, 8, 8), (3,), (1, 4, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_chunks_hold_every_frame_once(sizes: tuple[int, ...]) -> None:
    chunks = list(in_steps(frames(sum(sizes)), sizes))
    assert [len(chunk.frames) for chunk in chunks] == [*sizes]
    assert [pts for chunk in chunks for pts in chunk.pts] == [10 * n for n in range(sum(sizes))]
    assert [int(f[0, 0, 0]) for chunk in chunks for f in chunk.frames] == list(range(sum(sizes)))


def test_a_clip_that_ends_within_a_chunk() -> None:
    assert [len(chunk.frames) for chunk in in_steps(frames(7), repeat(4))] == [4, 3]


def test_a_chunk_does_not_wait_for_the_frame_behind_it() -> None:
    taken: list[int] = []
    chunks = in_steps((taken.append(n) or one for n, one in enumerate(frames(9))), (1, 8))
    assert len(next(chunks).frames) == len(taken) == 1


def test_more_frames_than_were_counted_are_refused() -> None:
    """A file that grows while it is read: the first chunk was of the wrong size."""
    with pytest.raises(InputError, match="more frames than a moment ago"):
        list(in_steps(frames(10), (1, 8)))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pieces", [(1,) * 40, (2, 3, 1, 16, 16), (40,)])
def test_latents_are_cut_as_the_decoder_wants_them(sizes: tuple[int, ...], pieces: tuple[int, ...]) -> None:
    whole = torch.arange(2.0 * sum(sizes)).view(2, sum(sizes), 1, 1)
    given = [piece for piece in whole.split([*_of(pieces, sum(sizes))], 1) if piece.shape[1]]
    made = list(latents_in_steps(given, sizes))
    assert [one.shape[1] for one in made] == [*sizes]
    assert torch.equal(torch.cat(made, 1), whole)
    assert [one.shape[1] for one in latents_in_steps(given, repeat(1))] == [1] * sum(sizes)


def _of(pieces: tuple[int, ...], count: int) -> Iterator[int]:
    """The first of them that make up ``count``, the last shortened."""
    for size in pieces:
        yield min(size, count)
        count -= min(size, count)


def test_parts_take_what_was_added_in_order() -> None:
    part, taken = StepPart(), []
    assert not part
    for n in range(2 * LATENT_FRAMES + 3):
        part.add({"latents": torch.full((2, 1, 1, 1), float(n))}, Chunk([], [n], [1]), n % 2)
        if part.full:
            taken.append(part.take())
            assert not part
    taken.append(part.take())
    values = [int(v) for tensors, _, _, _ in taken for v in tensors["latents"][0, :, 0, 0]]
    assert values == [pts for _, times, _, _ in taken for pts in times]
    assert all(b - a == 1 for a, b in pairwise(values))
    assert [len(times) for _, times, _, _ in taken] == [LATENT_FRAMES, LATENT_FRAMES, 3]
    assert [repeated for _, _, _, repeated in taken] == [LATENT_FRAMES // 2, LATENT_FRAMES // 2, 1]


def test_parts_count_latents_not_steps() -> None:
    part = StepPart()
    for _ in range(LATENT_FRAMES // 2):
        assert not part.full
        part.add({"latents": torch.zeros(2, 2, 1, 1)}, Chunk([], [0], [1]))
    assert part.full
    part.take()
    assert not part.full
