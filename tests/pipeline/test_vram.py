"""A budget from the library's side: the same numbers in whatever memory, or a refusal that says how much would do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_vaes import TINY, relative_l2, result

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run import disk_storage
from tvae.pipeline.errors import PlanError, UsageError
from tvae.pipeline.memory import limits as budget
from tvae.pipeline.session.weights import PreparedWeights

MIB, GIB = 1 << 20, 1 << 30
KL = TINY["AutoencoderKL"]
SIZE = (48, 40)
"""Of the latents: pictures of 192 x 160, buffers of 2 MiB to 4 MiB."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the system says, to be changed: a process of 300 MiB on a machine of 4 GiB."""
    facts = {"resident": 300 * MIB, "available": 4 * GIB}
    monkeypatch.setattr(budget, "_resident", lambda: facts["resident"])
    monkeypatch.setattr(budget, "_CPU_SPARE", 0)
    monkeypatch.setattr(budget, "available_bytes", lambda: facts["available"])
    return facts


@pytest.fixture(scope="module")
def model() -> Any:
    return KL.build()


def smallest(model: Any, side: str, **options: Any) -> int:
    """The MiB that a refusal names."""
    with pytest.raises(PlanError) as caught:
        getattr(TiledVAE(model, vram="1MiB", **options), side)(KL.input(side, *SIZE))
    found = re.fullmatch(r"a budget of 1.0 MiB is too small; the smallest that works is (\d+) MiB", str(caught.value))
    assert found, str(caught.value)
    return int(found[1])


@pytest.mark.long
@pytest.mark.parametrize("side", ["decode", pytest.param("encode", marks=pytest.mark.slow)])
def test_law_one_holds_in_any_budget(
    model: Any, side: str, memory: dict[str, int], spilled: list[Path], tmp_path: Path
) -> None:
    """From all that it wants down to the smallest, which names itself; 2 MiB less are refused."""
    x = KL.input(side, *SIZE)
    wide = KL.build().double()
    with torch.no_grad():
        reference = result(getattr(wide, side)(x.double()))
    enough = smallest(model, side)
    peaks = set()
    for size in (3 * GIB, (enough + 4) * MIB, enough * MIB):
        tiled = TiledVAE(model, vram=size, spill=tmp_path)
        assert relative_l2(result(getattr(tiled, side)(x)), reference) <= 1e-5
        peaks.add(tiled.plan(tuple(x.shape), side).peak_bytes)
    assert len(peaks) == 3  # several plans, and not one with another name
    assert spilled
    assert set(spilled) == {tmp_path}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PlanError, match=f"the smallest that works is {enough} MiB"):
        getattr(TiledVAE(model, vram=f"{enough - 2}MiB"), side)(x)


@pytest.mark.slow
def test_the_plan_is_what_runs(model: Any, memory: dict[str, int], spilled: list[Path]) -> None:
    x = KL.input("decode", *SIZE)
    enough = smallest(model, "decode")
    free, tight = (TiledVAE(model, vram=size) for size in ("3GiB", f"{enough}MiB"))
    plans = [tiled.plan(tuple(x.shape), "decode") for tiled in (free, tight)]
    assert spilled == []  # planning makes no file
    assert plans[0].disk_bytes == plans[0].moved_bytes == 0
    assert 0 < plans[1].disk_bytes < plans[1].moved_bytes
    assert plans[1].peak_bytes < plans[0].peak_bytes
    assert "elsewhere" not in str(plans[0])
    assert "on disk" in str(plans[1])
    free.decode(x)
    assert spilled == []
    tight.decode(x)
    assert str(plans[1]).count("on disk") <= len(spilled) + 1


@pytest.mark.long
def test_weights_that_find_no_memory_are_a_refusal_too(
    model: Any, memory: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card a budget is the allocator's limit while weights are laid out; what would do counts those to come."""
    loaded = smallest(model, "decode")

    def full(self: PreparedWeights, names: list[str]) -> None:
        del self, names
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PreparedWeights, "__call__", full)
    assert smallest(model, "decode") == pytest.approx(loaded, abs=1), "all of them are there"
    monkeypatch.setattr(PreparedWeights, "to_come", lambda _self, names: names)
    decoder = (t for n, t in model.named_parameters() if n.startswith(("decoder.", "post_quant_conv.")))
    assert smallest(model, "decode") - loaded == pytest.approx(sum(t.nbytes for t in decoder) / 0.92 / MIB, abs=2)
    with pytest.raises(torch.OutOfMemoryError):
        TiledVAE(model).decode(KL.input("decode", *SIZE))


@pytest.mark.slow
def test_a_height_that_is_asked_for_is_kept_in_a_budget(
    model: Any, memory: dict[str, int], spilled: list[Path]
) -> None:
    x = KL.input("decode", *SIZE)
    fixed = smallest(model, "decode", strip=12)
    assert fixed > smallest(model, "decode")
    tiled = TiledVAE(model, vram=f"{fixed}MiB", strip=12)
    assert tiled.plan(tuple(x.shape), "decode").strip_rows == 12
    tiled.decode(x)
    assert spilled


def test_without_a_budget_it_is_what_is_free_now(model: Any, memory: dict[str, int], spilled: list[Path]) -> None:
    """A plan that does not fit any more is made anew; one that does is kept."""
    x = KL.input("decode", *SIZE)
    tiled = TiledVAE(model)
    want = tiled.decode(x).sample
    assert spilled == []
    memory["available"] = 10 * MIB
    got = tiled.decode(x).sample
    assert spilled
    assert relative_l2(got, want) < 1e-5
    memory["available"] = 1 * MIB
    with pytest.raises(PlanError, match="the smallest that works is"):
        tiled.decode(x)


@pytest.mark.long
def test_a_program_that_has_grown_beyond_its_budget_is_told(
    model: Any, memory: dict[str, int], spilled: list[Path]
) -> None:
    """As one that begins now, also at a size that it has computed before. Until then its plan is kept."""
    x = KL.input("decode", *SIZE)
    tiled = TiledVAE(model, vram=memory["resident"] + GIB)
    want = tiled.decode(x).sample
    for grown, fits in ((900 * MIB, True), (1000 * MIB, False), (2 * GIB, False), (900 * MIB, True)):
        memory["resident"] = 300 * MIB + grown
        if fits:
            assert torch.equal(tiled.decode(x).sample, want)
        else:
            with pytest.raises(PlanError, match="the smallest that works is"):
                tiled.decode(x)
    assert spilled == []


def test_freed_memory_goes_back_where_resident_memory_counts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a budget was named, and nowhere else: it takes time."""
    asked: list[str] = []
    monkeypatch.setattr("tvae.pipeline.session.between_strips.return_what_is_free", lambda: asked.append("asked"))
    x = KL.input("decode", 4, 4)
    TiledVAE(model).decode(x)
    assert asked == []
    bounded = TiledVAE(model, vram=(budget._resident() or GIB) + GIB)
    bounded.decode(x)
    assert len(asked) >= len(bounded.plan(tuple(x.shape), "decode").segments)


@pytest.mark.parametrize("size", ["0", "-1", "8XB", "", 0, -5])
def test_what_is_no_amount_is_told_at_once(model: Any, size: str | int) -> None:
    with pytest.raises(UsageError):
        TiledVAE(model, vram=size)


def test_more_than_the_machine_has(model: Any, memory: dict[str, int]) -> None:
    with pytest.raises(PlanError, match=r"10.00 GiB is more than cpu has \(4.29 GiB\)"):
        TiledVAE(model, vram="10GiB").decode(KL.input("decode", 8, 8))


@pytest.mark.long
def test_a_folder_for_spilling_that_is_not_there(model: Any, memory: dict[str, int], tmp_path: Path) -> None:
    enough = smallest(model, "decode")
    tiled = TiledVAE(model, vram=f"{enough}MiB", spill=tmp_path / "missing")
    with pytest.raises(
        PlanError, match=r"cannot spill .* to .*missing: No such file or directory; name another folder"
    ):
        tiled.decode(KL.input("decode", *SIZE))


@pytest.mark.long
def test_a_disk_without_room_is_told_before_anything_is_written(
    model: Any, memory: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = smallest(model, "decode")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage(1 << 30, 1 << 30, 4096))
    monkeypatch.setattr(disk_storage, "_private_file", lambda *_: pytest.fail("something was written"))
    tiled = TiledVAE(model, vram=f"{enough}MiB", spill=tmp_path)
    with pytest.raises(PlanError, match=r"needs .* on disk, and .* has 4.0 KiB free; name another folder"):
        tiled.decode(KL.input("decode", *SIZE))


# -- resident memory, as the system counts it --------------------------------------------------------------------------
MEASURED = """
import sys
from tvae.cli.app import main
try:
    main()
except SystemExit as end:
    code = end.code
with open("/proc/self/status") as status:
    print("peak", *(line.split()[1] for line in status if line.startswith("VmHWM:")))
sys.exit(code)
"""
"""Not ``getrusage``: what that tells of a child is at least what its parent held when it was started."""


def program(*arguments: object, code: int = 0) -> tuple[str, int]:
    """(stderr, most bytes resident) of the program in a process of its own, on one core."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments), "--device", "cpu", "--no-progress"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == code, run.stderr
    return run.stderr, int(run.stdout.split()[-1]) << 10


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is asked of the system in its own way")
def test_four_million_pixels_stay_within_their_budget(tmp_path: Path) -> None:
    """Peak resident size of the process, Python and torch included; half of it, or less, without one."""
    from PIL import Image

    y, x = np.mgrid[0:2048, 0:2048]
    rgb = np.stack([128 + 90 * np.sin(x / 90), 128 + 90 * np.cos(y / 70), 40 + (x + y) / 34], -1)
    rgb += np.random.default_rng(0).normal(0, 6, rgb.shape)
    picture, spill = tmp_path / "p.png", tmp_path / "spill"
    Image.fromarray(rgb.clip(0, 255).astype(np.uint8)).save(picture)
    spill.mkdir()
    program("encode", picture, "-o", tmp_path / "lat")
    latents = tmp_path / "lat" / "p.png.safetensors"
    _, free = program("decode", latents, "-o", tmp_path / "free")
    refused = program("decode", latents, "-o", tmp_path / "none", "--vram", "1MiB", code=2)[0]
    named = int(refused.split()[-2]) + 16  # a process is never of quite the same size
    for size in (named, 700):
        _, peak = program("decode", latents, "-o", tmp_path / f"{size}", "--vram", f"{size}MiB", "--spill", spill)
        print(f"\ndecode 2048x2048 in {size} MiB: {peak >> 20} MiB resident at most, {free >> 20} MiB without a budget")
        assert peak <= size * MIB < free / 2
        assert list(spill.iterdir()) == []
        with Image.open(tmp_path / "free" / "p.png") as one, Image.open(tmp_path / f"{size}" / "p.png") as other:
            difference = np.abs(np.array(one).astype(int) - np.array(other).astype(int))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-3
    refused = program("encode", picture, "-o", tmp_path / "none", "--vram", "1MiB", code=2)[0]
    named = int(refused.split()[-2]) + 16
    _, peak = program("encode", picture, "-o", tmp_path / "tight", "--vram", f"{named}MiB", "--spill", spill)
    assert peak <= named * MIB
