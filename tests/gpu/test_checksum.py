"""Checksums of weights on a real GPU: the kernel against the definition, recorded, large, and without waiting."""

from __future__ import annotations

import pytest
import torch
from checksum_inputs import CHANGES, TYPES, laid_out, random_bytes, random_of
from torch import Tensor

from tvae.kernels import checksum
from tvae.kernels.checksum import WeightChecksums
from tvae.kernels.registry import why_missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
HERE = torch.cuda.is_available()  # without a GPU nothing imports Triton's kernels before ``interpreted`` does
needs_triton = pytest.mark.skipif(HERE and why_missing("triton") is not None, reason="needs Triton")


def on_cpu(*tensors: Tensor) -> list[int]:
    """The definition's sums of the same bytes."""
    found: list[int] = WeightChecksums([_on_cpu(t) for t in tensors])().tolist()
    return found


def _on_cpu(t: Tensor) -> Tensor:
    """With the same strides over a copy of the same memory."""
    memory = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage()).cpu()
    whole = torch.empty(0, dtype=t.dtype).set_(memory.untyped_storage())
    return whole.as_strided(t.shape, t.stride(), t.storage_offset())


def model(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Weights of many sizes, some with channels last, 30 MB of bfloat16."""
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [
        (512, 512, 3, 3),
        (512,),
        (256, 512, 3, 3),
        (256,),
        (3, 128, 3, 3),
        (3,),
        (128, 256, 3, 3),
        (512, 512),
    ] * 3
    found = [torch.randn(shape, generator=generator, device="cuda").to(dtype) for shape in shapes]
    return [
        t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 and n % 2 else t for n, t in enumerate(found)
    ]


@pytest.mark.parametrize("level", [pytest.param("triton", marks=needs_triton), "native"])
def test_the_sums_are_those_of_the_definition_on_a_cpu(level: str) -> None:
    tensors = [*(t for t, _ in laid_out("cuda").values()), *(random_of(d, 7, 33).cuda() for d in TYPES), *model()]
    sums = WeightChecksums(tensors)
    if level == "native":
        sums._fused = None
    assert (sums._fused is None) == (level == "native")
    expected = on_cpu(*tensors)
    for _ in range(3):
        assert sums().tolist() == expected


@needs_triton
@pytest.mark.parametrize("offset", [1, 2, 4, 8, 12, 16])
def test_whole_blocks_that_do_not_lie_on_words(offset: int) -> None:
    data = random_bytes(200_000).cuda()[offset:]
    assert WeightChecksums([data])().tolist() == on_cpu(data)


@needs_triton
def test_the_same_bits_give_the_same_sums() -> None:
    weights = model()
    sums = WeightChecksums(weights)
    first = sums().tolist()
    assert all(sums().tolist() == first for _ in range(50))
    assert WeightChecksums([t.clone() for t in weights])().tolist() == first


@needs_triton
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    weights = [*model(), torch.randn(1000, 1000, device="cuda")]
    sums = WeightChecksums(weights)
    before = sums().tolist()
    CHANGES[change](weights[-1].data)
    after = sums().tolist()
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]


@needs_triton
def test_a_recorded_call_sees_changes() -> None:
    """Of all tensors, also of one with holes in its memory."""
    weights = [*model(), torch.randn(100, 100, device="cuda")[:, ::2]]
    sums = WeightChecksums(weights)
    result = sums()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert sums() is result
    for changed, weight in enumerate(weights):
        before = result.tolist()
        weight.data.view(-1)[-1:].add_(1) if weight.is_contiguous() else weight.data[-1, -1].add_(1)
        graph.replay()
        after = result.tolist()
        assert [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [changed]
    assert result.tolist() == on_cpu(*weights)


@needs_triton
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_and_nothing_is_allocated() -> None:
    weights = [*model(), torch.randn(100, 100, device="cuda")[:, ::2]]
    sums = WeightChecksums(weights)
    expected = sums().tolist()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            result = sums()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    assert result.tolist() == expected


@needs_triton
def test_it_runs_on_the_current_stream() -> None:
    weights = model()
    sums = WeightChecksums(weights)
    before = sums().tolist()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        weights[3].data.add_(1)
        changed = sums().tolist()
    assert [a != b for a, b in zip(before, changed, strict=True)] == [n == 3 for n in range(len(weights))]


@needs_triton
def test_more_than_2_gib() -> None:
    """Every end counts, and a bit beyond 2^32 bytes."""
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB")
    x = torch.zeros((1 << 32) + 4099, dtype=torch.uint8, device="cuda")
    sums = WeightChecksums([random_bytes(20).cuda(), x])
    expected = sums().tolist()
    sums._fused, fused = None, sums._fused
    assert sums().tolist() == expected
    sums._fused = fused
    seen = {expected[1]}
    for place in (0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, len(x) - 1):
        x[place] = 1
        seen.add(sums().tolist()[1])
        x[place] = 0
    assert len(seen) == 7
    assert sums().tolist() == expected


@needs_triton
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    weights = [t.to("cuda:1") for t in model()]
    assert WeightChecksums(weights)().tolist() == on_cpu(*weights)


def test_the_definition_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_bytes(5000).cuda()
    expected = on_cpu(data, data[1:])
    monkeypatch.setattr(checksum, "_CHUNK", 512)
    sums = WeightChecksums([data, data[1:]])
    sums._fused = None
    assert sums().tolist() == expected
