"""Checksums of weights: the definition against NumPy's integers, and that every change is seen."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from checksum_inputs import CHANGES, TYPES, laid_out, random_bytes, random_of
from torch import Tensor

from tvae.kernels import checksum
from tvae.kernels.checksum import WeightChecksums
from tvae.kernels.registry import Failed

LAID_OUT = laid_out()


def mixed(word: np.ndarray) -> np.ndarray:
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


def expected(data: Tensor, number: int) -> int:
    """The sum of bytes by their definition, in NumPy's unsigned integers, as a signed one."""
    raw = data.numpy().tobytes()
    words = np.frombuffer(raw + bytes(-len(raw) % 8), dtype="<u8")
    keys = mixed(np.array([number + 1], dtype=np.uint64)) + np.arange(len(words), dtype=np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    )
    return int(mixed(words ^ keys).sum(dtype=np.uint64).astype(np.int64))


def sums_of(*tensors: Tensor) -> list[int]:
    found: list[int] = WeightChecksums(tensors)().tolist()
    return found


@pytest.mark.parametrize("name", [name for name in LAID_OUT if name != "holes and overlaps of one span"])
def test_the_sum_is_that_of_the_bytes_in_memory(name: str) -> None:
    t, data = LAID_OUT[name]
    sums = WeightChecksums([random_bytes(5), t])
    assert sums().tolist()[1] == expected(data, 1)
    assert bool(sums._copies) == any(word in name for word in ("columns", "holes", "overlapping"))  # else read in place


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type(dtype: torch.dtype) -> None:
    t = random_of(dtype, 7, 33)
    assert sums_of(t) == [expected(t.view(torch.uint8).flatten(), 0)]


@pytest.mark.parametrize("count", [511, 512, 513, 520, 1024, 3000])
def test_chunks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_CHUNK", 512)
    data = random_bytes(count + 3)
    assert sums_of(data[:count], data[3:]) == [expected(data[:count], 0), expected(data[3:], 1)]


@pytest.mark.parametrize("offset", range(8))
def test_memory_that_begins_between_words(offset: int) -> None:
    """As that of a mapped file does."""
    memory = np.random.default_rng(0).integers(256, size=2000).astype(np.uint8)
    t = torch.from_numpy(memory[3:])[offset : offset + 800]
    assert sums_of(t) == [expected(torch.from_numpy(memory[3 + offset : 803 + offset]), 0)]
    assert all(words.data_ptr() % 8 == 0 for _, words in checksum._words(t))  # a GPU reads no others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str, dtype: torch.dtype) -> None:
    x = torch.randn(24, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    other = torch.ones(3)
    sums = WeightChecksums([other, x, other])
    before, bits = sums().tolist(), x.view(torch.uint8).clone()
    CHANGES[change](x.data)
    assert not torch.equal(x.view(torch.uint8), bits)
    after = sums().tolist()
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
    x.view(torch.uint8).copy_(bits)
    assert sums().tolist() == before


@pytest.mark.parametrize("name", LAID_OUT)
def test_every_byte_counts(name: str) -> None:
    """And those between a tensor's own do not."""
    t = laid_out()[name][0]
    memory = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
    item, at = t.element_size(), torch.arange(memory.numel() // t.element_size())
    own = {int(i) for i in at.as_strided(t.shape, t.stride(), t.storage_offset()).flatten()}
    sums = WeightChecksums([t])
    before = sums().item()
    places = range(len(memory)) if len(memory) < 2000 else [*range(60), *range(1990, len(memory), 37)]
    for place in places:
        memory[place] ^= 1
        assert (sums().item() != before) == (place // item in own), place
        memory[place] ^= 1
    assert sums().item() == before


def test_writes_that_count_no_version() -> None:
    weight, frozen = torch.nn.Parameter(torch.randn(8, 8)), torch.nn.Parameter(torch.randn(8))
    with torch.inference_mode():
        inferred = torch.randn(5)
    sums = WeightChecksums([weight, frozen, inferred])
    seen, versions = [sums().tolist()], (weight._version, frozen._version)
    for write in (
        lambda: weight.data.copy_(torch.randn(8, 8)),
        lambda: weight.detach().numpy().__setitem__((0, 0), 4.0),
        lambda: frozen.data.add_(1e-3),
        lambda: inferred.numpy().fill(0.5),
    ):
        write()
        seen.append(sums().tolist())
    assert (weight._version, frozen._version) == versions
    changed = [[a != b for a, b in zip(old, new, strict=True)] for old, new in pairwise(seen)]
    assert changed == [[True, False, False]] * 2 + [[False, True, False], [False, False, True]]


def test_equal_tensors_have_sums_of_their_own() -> None:
    """So that exchanged contents change the sums' sum, too."""
    a, b = torch.randn(50), torch.randn(50)
    assert len({*sums_of(a, a, a)}) == 3
    assert sum(sums_of(a, b)) % 2**64 != sum(sums_of(b, a)) % 2**64


def test_numbers_that_a_lesser_sum_gives_twice() -> None:
    """Structured data in many variants: all sums differ."""
    ones = torch.eye(64, dtype=torch.int64)  # one bit at each of 64 words
    found = [sums_of(word << bit)[0] for word in ones for bit in (0, 1, 31, 32, 33, 62, 63)]
    found += [sums_of(torch.zeros(n, dtype=torch.uint8))[0] for n in range(8, 3000, 8)]
    assert len({*found}) == len(found)


def test_signs_do_not_cancel() -> None:
    """Of many words, each with its signs turned: a mixer that is weak at the top gives the old sum again and again."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for count in range(2, 400, 2):
            x = torch.randn(count * 8 // dtype.itemsize, generator=torch.Generator().manual_seed(count)).to(dtype)
            assert sums_of(x) != sums_of(-x), (dtype, count)


def test_the_bits_of_sums_are_even() -> None:
    """Two changes that undo each other in the sum's low bits are no likelier than in others."""
    base = torch.zeros(4, dtype=torch.int64)
    before = sums_of(base)[0]
    differences = []
    for n in range(600):
        base[n % 4] = n + 1
        differences.append((sums_of(base)[0] - before) % 2**64)
    for bit in range(64):
        ones = sum(d >> bit & 1 for d in differences)
        assert 220 < ones < 380, (bit, ones)  # 6.5 standard deviations


def test_one_result_for_all_calls() -> None:
    x = torch.randn(100)
    sums = WeightChecksums([x, x[::2]])
    first = sums()
    kept = first.clone()
    x += 1
    assert sums() is first
    assert not (first == kept).any()
    assert (first.dtype, first.shape, first.device) == (torch.int64, (2,), x.device)


def test_in_any_mode() -> None:
    x = torch.randn(100)
    kept = sums_of(x, x[::3])
    with torch.inference_mode():
        made = WeightChecksums([x, x[::3]])
        assert made().tolist() == kept
    assert made().tolist() == kept
    made = WeightChecksums([x, x[::3]])
    made()
    with torch.inference_mode():
        assert made().tolist() == kept
    weights = [torch.nn.Parameter(x), torch.nn.Parameter(x)[::3]]
    assert sums_of(*weights) == kept
    with torch.device("meta"):
        assert sums_of(x, x[::3]) == kept


def test_the_memory_is_kept() -> None:
    """A tensor that moved leaves its memory to the sums, until they are let go of."""
    weight = torch.nn.Parameter(torch.randn(1000))
    sums = WeightChecksums([weight])
    before = sums().item()
    weight.data = torch.zeros(1000)
    blocks = [torch.zeros(1000) for _ in range(20)]
    assert sums().item() == before
    assert all(b.sum() == 0 for b in blocks)


def test_without_tensors() -> None:
    assert WeightChecksums([])().shape == (0,)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([torch.ones(2), torch.ones(2, device="meta")], "several devices: cpu, meta"),
        ([torch.ones(2, device="meta")], "without memory"),
        ([torch.ones(2, 2).to_sparse()], "without memory"),
    ],
)
def test_what_cannot_be_read_is_refused(tensors: list[Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WeightChecksums(tensors)


@pytest.mark.parametrize("of", [lambda x: x, lambda x: x[::2], lambda x: x[9:]])
def test_memory_that_was_given_back_is_refused(of: Any) -> None:
    x = torch.randn(10)
    t = of(x)
    x.untyped_storage().resize_(39)
    if t.data_ptr() == x.data_ptr() and len(t) == 5:
        x.untyped_storage().resize_(35)
    with pytest.raises(ValueError, match="given back"):
        WeightChecksums([t])


def test_a_level_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    x, asked = torch.randn(10), list[int]()

    def fails(_sums: Tensor) -> None:
        asked.append(1)
        raise Failed("no compiler")

    sums = WeightChecksums([x])
    sums._fused = fails  # type: ignore[assignment]
    with caplog.at_level(logging.INFO, "tvae"):
        assert [sums().tolist(), sums().tolist()] == [sums_of(x)] * 2
    assert asked == [1]
    assert [r.getMessage() for r in caplog.records] == ["checksums of weights: not at level triton (no compiler)"]
