"""Budgets on a GPU: Stable Diffusion XL's VAE in bfloat16, in memory that is named.

Everything the process takes from the device counts: its context, the libraries' workspaces, the allocator's holes. The
card must be this process's alone. Prints a table: what was named, what was taken, what the plan said, and the time.
"""

from __future__ import annotations

import gc
import re
import statistics
from typing import Any

import pytest
import torch
from tiny_vaes import TinyVAE, relative_l2, result, waves

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.errors import PlanError
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MIB, GIB = 1 << 20, 1 << 30
SDXL = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "sample_size": 1024,
        "force_upcast": False,
    },
    (4, None),
    8,
)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.cuda.empty_cache()  # or the weights lie in gigabytes that another module's tests left, and keep them
    return SDXL.build().cuda().bfloat16()


def input_of(side: str, size: int) -> torch.Tensor:
    shape = (1, 4, size // 8, size // 8) if side == "decode" else (1, 3, size, size)
    return waves(shape).cuda().bfloat16()


def taken() -> int:
    """Bytes of the device that are not free: all this process has, if the card is its own."""
    free, total = torch.cuda.mem_get_info()
    return total - free


class Watched:
    """What calls hold of activations, the most that a first one and three more took, and the median time of those.

    In the first cuDNN tries what it has, with workspaces as large as there is room for.
    """

    def __init__(self, run: Any) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        self.value = run()
        torch.cuda.synchronize()
        self.first = torch.cuda.max_memory_allocated() - held
        reserved = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        times = []
        for _ in range(3):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        self.milliseconds = statistics.median(times)
        beside = taken() - torch.cuda.memory_reserved()  # context, libraries, what they hold by themselves
        self.activations = torch.cuda.max_memory_allocated() - held
        self.device = beside + max(reserved, torch.cuda.max_memory_reserved())


def watched(tiled: TiledVAE, side: str, x: torch.Tensor) -> Watched:
    return Watched(lambda: result(getattr(tiled, side)(x)))


def smallest(model: Any, side: str, x: torch.Tensor) -> int:
    """Bytes of the budget that a refusal names."""
    gc.collect()  # what earlier calls left in cycles would count as the libraries'
    with pytest.raises(PlanError) as caught:
        getattr(TiledVAE(model, preset="h200", vram="1MiB"), side)(x)
    found = re.search(r"the smallest that works is (\d+) MiB$", str(caught.value))
    assert found, str(caught.value)
    del caught  # its traceback holds this frame, and the weights that were laid out for the refused call
    return int(found[1]) * MIB


@pytest.mark.parametrize("size", [1024, 2048])
@pytest.mark.parametrize("side", ["decode", "encode"])
def test_budgets_are_kept(model: Any, side: str, size: int) -> None:
    """Never more than was named, the unlimited run's numbers, and a prediction within a tenth of what was measured (of
    little, within 32 MiB: results count from the start, statistics not at all; and of copies to the host as many are
    said to be under way as may be, some 64 MiB, of which a fast host has done most)."""
    x = input_of(side, size)
    free = watched(TiledVAE(model, preset="h200"), side, x)
    least = smallest(model, side, x)
    wanted = [n * GIB for n in (24, 12, 8, 6, 4, 3, 2) if n * GIB > least]
    wrong = []
    print(f"\n{side} {size}: free {free.milliseconds:.1f} ms, {free.device / GIB:.2f} GiB; least {least / GIB:.2f} GiB")
    for named in [*wanted, 0]:
        named = named or (least := smallest(model, side, x))  # again: libraries hold more than they did at first
        tiled = TiledVAE(model, preset="h200", vram=named)
        run = watched(tiled, side, x)
        plan = tiled.plan(tuple(x.shape), side)  # the run's; a plan that comes first has room for one more input
        error = relative_l2(run.value, free.value)
        ratio = plan.peak_bytes / run.activations
        print(
            f"  named {named / GIB:6.2f} GiB  taken {run.device / GIB:6.2f}  first {run.first / GIB:6.2f}  "
            f"activations {run.activations / GIB:6.2f} said {plan.peak_bytes / GIB:6.2f} (x{ratio:.2f})  "
            f"host {plan.host_bytes / GIB:6.2f}  strips of {plan.strip_rows:4}  {run.milliseconds:8.1f} ms "
            f"(x{run.milliseconds / free.milliseconds:.2f})  difference {error:.1e}"
        )
        if run.device > named:
            wrong.append(f"took {run.device / GIB:.2f} GiB of {named / GIB:.2f}")
        near, more = max(0.1 * run.activations, 32 * MIB), 64 * MIB if plan.host_bytes else 0
        if not -near <= plan.peak_bytes - run.activations <= near + more:
            wrong.append(f"said {plan.peak_bytes / GIB:.2f} GiB, held {run.activations / GIB:.2f} in {named / GIB:.2f}")
        if not error < 0.03:  # both are some way from float32: law 1 is held elsewhere
            wrong.append(f"differs by {error:.1e} in {named / GIB:.2f} GiB")
        del tiled, run
    # what a refusal names has room for pages, and for what libraries take until the next call: 50 MiB of 1.4 GiB
    with pytest.raises(PlanError):
        getattr(TiledVAE(model, preset="h200", vram=int(0.9 * least)), side)(x)
    assert not wrong, "; ".join(wrong)


def test_what_recordings_keep_is_not_for_a_budget(model: Any) -> None:
    """Gigabytes that a CUDA graph holds, between calls, too: what is named has to do beside them."""
    x = input_of("encode", 1536)
    torch.cuda.empty_cache()
    before = taken()  # of a context and libraries, which hold more after other modules' tests
    other = TiledVAE(model, preset="h200")
    free = [result(other.encode(x)) for _ in range(RECORDED_AT)][-1]
    torch.cuda.empty_cache()
    assert taken() - torch.cuda.memory_allocated() > 2 * GIB, "was it recorded?"
    named = before + 7 * GIB
    run = watched(TiledVAE(model, preset="h200", vram=named), "encode", x)
    assert run.device <= named, run.device / GIB
    assert relative_l2(run.value, free) < 0.03
    assert torch.equal(result(other.encode(x)), free)
    least = smallest(model, "encode", x)
    with pytest.raises(PlanError):
        TiledVAE(model, preset="h200", vram=int(0.9 * least)).encode(x)


def test_law_one_in_the_smallest_budget(model: Any) -> None:
    """Against float32: no further than the unlimited run in bfloat16, by more than a fiftieth."""
    import copy

    x = input_of("decode", 1024)
    exact = copy.deepcopy(model).float()
    with torch.no_grad():
        reference = result(exact.decode(x.float()))
        own = relative_l2(result(model.decode(x)), reference)
    del exact
    tight = TiledVAE(model, preset="h200", vram=smallest(model, "decode", x))
    assert relative_l2(result(tight.decode(x)), reference) <= 1.02 * own


@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("last", [False, True])
def test_rows_there_and_back(place: str, last: bool, tmp_path: Any) -> None:
    """Written in bands and read in others while the device computes: no copy overtakes what it copies."""
    axis, shape = Axis(2, 1, 512, 1), (1, 32, 512, 640)
    device = torch.device("cuda", torch.cuda.current_device())
    what = shape, axis, torch.bfloat16, device, last
    kept = OnHost(*what) if place == "host" else OnDisk(*what, tmp_path)
    full = torch.randn(shape, device=device).bfloat16()
    if last:
        full = full.contiguous(memory_format=torch.channels_last)
    busy = torch.randn(4096, 4096, device=device)
    pending = []
    for lo in range(0, 512, 48):
        busy = (busy @ busy).clamp(-1, 1)  # the rows are made behind this, and the copy must wait for them
        rows = crop(full, axis, lo, min(lo + 48, 512)) + busy[0, 0].bfloat16() * 0
        pending.append(kept.keep(lo, min(lo + 48, 512), rows))
        del rows  # its memory is free for the next, but not before it is copied
    for each in pending:
        each.result()
    fetched = [(lo, kept.fetch(lo, min(lo + 70, 512))) for lo in range(448, -1, -64)]
    for lo, each in fetched:
        assert torch.equal(each.result(), crop(full, axis, lo, min(lo + 70, 512)))
    torch.cuda.synchronize()
    kept.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_spilled_that_fits(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory to spare no copy leaves the device."""

    def refused(*_args: Any) -> Any:
        raise AssertionError("moved, and there was room")

    monkeypatch.setattr(OnHost, "__init__", refused)
    monkeypatch.setattr(OnDisk, "__init__", refused)
    TiledVAE(model, preset="h200", vram="24GiB").decode(input_of("decode", 1024))
