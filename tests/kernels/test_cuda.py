"""The CUDA level without a GPU: its parameters, how it sees maps, and its sources through NVRTC."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tvae.kernels import Unsupported, cuda, native
from tvae.kernels.cuda import program
from tvae.kernels.cuda.maps import common
from tvae.kernels.cuda.ring import FORMS, VECTOR_BYTES, Card, Ring, RingLayout, geometry
from tvae.kernels.layout import channels_last

H200 = Card((9, 0), 132, 232448, 233472)
CARDS = (H200, Card((8, 0), 108, 166912, 167936), Card((8, 6), 28, 101376, 102400), Card((12, 0), 170, 101376, 102400))
CAPABILITIES = [("bulk", (9, 0)), ("bulk", (12, 0)), ("async", (8, 0)), ("async", (8, 6)), ("async", (8, 9))]


@pytest.mark.parametrize(("stages", "prefetch"), [(2, 1), (4, 1), (4, 3), (8, 7)])
def test_a_ring_prefetches_less_than_it_holds(stages: int, prefetch: int) -> None:
    ring = Ring(stages, prefetch)
    assert (ring.stages, ring.prefetch) == (stages, prefetch)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stages": 1, "prefetch": 1}, "at least 2 stages, not 1"),
        ({"stages": 4, "prefetch": 4}, "with 4 stages, prefetch is 1 to 3 tiles, not 4"),
        ({"stages": 4, "prefetch": 0}, "with 4 stages, prefetch is 1 to 3 tiles, not 0"),
        ({"tile_bytes": 8}, "at least 16 bytes, not 8"),
        ({"blocks": 0}, "at least 1 block, not 0"),
    ],
)
def test_a_ring_that_contradicts_itself_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ring(**wrong)


def test_a_ring_too_large_for_the_card_is_refused_with_the_numbers() -> None:
    size = (1, 1, 1 << 20, 128)
    fits = geometry(size, 2, 2, True, Ring(3, 2, 32768), "bulk", H200)
    assert fits.shared == 3 * 2 * 32768 + 128
    with pytest.raises(ValueError, match=r"4 stages of 2 x 32768 bytes takes 262272 bytes .* at most 232448"):
        geometry(size, 2, 2, True, Ring(4, 3, 32768), "bulk", H200)


@given(
    st.sampled_from(CARDS),
    st.sampled_from(sorted(FORMS)),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 1 << 31),
    st.integers(1, 128),
    st.sampled_from([2, 4]),
    st.integers(1, 2),
    st.booleans(),
)
@settings(max_examples=4 * settings.default.max_examples, deadline=None)
def test_the_default_ring_fits_every_card(
    card: Card, form: str, samples: int, outer: int, pixels: int, sixteens: int, size: int, maps: int, stats: bool
) -> None:
    channels = 16 * sixteens
    cut = geometry((samples, outer, pixels, channels), size, maps, stats, None, form, card)
    assert cut.groups * VECTOR_BYTES == channels * size
    assert cut.tile >= 1
    assert (cut.per_run - 1) * cut.tile < pixels <= cut.per_run * cut.tile
    assert cut.groups * cut.lanes <= cut.threads - (32 if form == "bulk" else 0)
    assert cut.threads <= 544
    assert cut.threads % 32 == 0
    assert Ring().stages * maps * cut.tile * channels * size <= cut.shared <= card.shared_block
    if stats:
        assert (2 * cut.lanes + 1) * channels * 4 <= cut.shared


def test_small_maps_are_cut_smaller() -> None:
    def cut(side: int) -> RingLayout:
        return geometry((1, 1, side * side, 512), 2, 1, True, None, "bulk", H200)

    assert cut(256).tile == 16
    assert cut(64).tile < 16
    assert cut(64).per_run > 132


def test_maps_of_one_shape_are_walked_together() -> None:
    shape = (2, 16, 3, 5, 7)
    dense = channels_last(shape)
    assert dense == torch.empty(shape).to(memory_format=torch.channels_last_3d).stride()
    assert common(((shape, dense),), torch.float32).size == (2, 1, 105, 16)
    band = torch.empty(2, 3, 9, 7, 16)[:, :, 2:7].movedim(-1, 1)
    maps = common(((shape, dense), (shape, band.stride())), torch.bfloat16)
    assert maps.size == (2, 3, 35, 16)
    assert maps.strides == ((3360, 1120, 32), (6048, 2016, 32))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.empty(1, 16, 4, 4), "not innermost"),
        (lambda: torch.empty(1, 4, 4, 16, dtype=torch.float64).movedim(-1, 1), "not a type"),
        (lambda: torch.empty(1, 4, 4, 6, dtype=torch.float32).movedim(-1, 1), "6 channels of 4 bytes"),
        (lambda: torch.empty(1, 4, 4, 4096).movedim(-1, 1), "too many"),
        (lambda: torch.empty(1, 4, 4, 18)[..., :16].movedim(-1, 1), "multiples of 16 bytes"),
    ],
)
def test_maps_that_are_not_taken(make: Any, reason: str) -> None:
    x = make()
    with pytest.raises(Unsupported, match=reason):
        common(((tuple(x.shape), x.stride()),), x.dtype)


def test_tensors_elsewhere_are_not_taken() -> None:
    x = torch.randn(1, 4, 4, 16).movedim(-1, 1)
    for run in (
        lambda: cuda.IMPLEMENTATIONS["group_stats"](x),
        lambda: cuda.IMPLEMENTATIONS["norm_act"](x, torch.ones(2, 1, 16), None),
        lambda: cuda.IMPLEMENTATIONS["add_stats"](x, x, None, None, True),
    ):
        with pytest.raises(Unsupported, match="not on a CUDA device"):
            run()


def test_every_operation_has_a_definition() -> None:
    assert cuda.IMPLEMENTATIONS.keys() <= native.IMPLEMENTATIONS.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_lacks_the_level() -> None:
    assert cuda.missing() == "no NVIDIA GPU"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled programs, on a machine with NVRTC."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:
        pytest.skip(f"needs NVRTC: {error}")
    folder = tmp_path / "kernels"
    monkeypatch.setattr(program, "cache_folder", lambda: folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("form", "capability"), CAPABILITIES)
def test_every_ring_compiles(form: str, capability: tuple[int, int], kept: Path) -> None:
    for element in range(3):
        made = program.compiled(form, capability, [("ELEMENT", element), ("STAGES", 4), ("PREFETCH", 3)])
        assert all(name.encode() + b"\0" in made for name in program.PROGRAMS[form].kernels)


@pytest.mark.long
@pytest.mark.parametrize("element", [1, 2])
@pytest.mark.parametrize("form", ["", "ENLARGE", "DOWN"])
def test_every_convolution_compiles(form: str, element: int, kept: Path) -> None:
    for residual, stats in product([0] if form else range(2), range(2)):
        flags = {"RESIDUAL": residual, "STATS": stats, "ENLARGE": form == "ENLARGE", "DOWN": form == "DOWN"}
        macros = [("ELEMENT", element), *((name, int(value)) for name, value in flags.items())]
        assert b"conv\0" in program.compiled("hopper_conv", (9, 0), macros)


def test_what_does_not_compile_is_told(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "source", lambda _name: "nonsense")
    with pytest.raises(RuntimeError, match=r"NVRTC_ERROR_COMPILATION: tvae\(1\): error"):
        program.compiled(*ONE)
    assert not list(kept.glob("*"))


def test_a_wheels_compiler_is_known_without_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = ModuleType("cuda.bindings")
    bindings.__version__ = "13.1.0"
    bindings.driver = ModuleType("driver")
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.delitem(sys.modules, "cuda.bindings.nvrtc", raising=False)
    monkeypatch.setattr(sys.modules["cuda"], "bindings", bindings, raising=False)
    there = {"nvidia-cuda-nvrtc": "13.0.88"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(program, "version", version)
    compiler, missing = program._compiler.__wrapped__, program.missing.__wrapped__
    monkeypatch.setattr(program, "_compiler", compiler)
    assert compiler() == "nvidia-cuda-nvrtc 13.0.88"
    assert missing() is None  # and there is no nvrtc to import
    bindings.__version__, there["nvidia-cuda-nvrtc-cu12"] = "12.9.1", "12.8.93"
    assert compiler() == "nvidia-cuda-nvrtc-cu12 12.8.93"
    there.clear()
    assert missing() == "cuda.bindings is not installed"
    success = SimpleNamespace(value=0)
    bindings.nvrtc = SimpleNamespace(nvrtcVersion=lambda: (success, 12, 8))
    assert compiler() == "NVRTC 12.8"
    bindings.nvrtc = SimpleNamespace(nvrtcVersion=lambda: 1 / 0)
    assert missing() == "NVRTC cannot be loaded: division by zero"


ONE = "bulk", (9, 0), [("ELEMENT", 1), ("STAGES", 4), ("PREFETCH", 3)]


@pytest.mark.long
def test_compiled_programs_are_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program.compiled(*ONE)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    assert whole.endswith(made)
    with monkeypatch.context() as patch:
        patch.setattr(program, "_compile", lambda *_: pytest.fail("compiled again"))
        assert program.compiled(*ONE) == made
    for damage in b"", made, whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]):
        file.write_bytes(damage)
        assert program.compiled(*ONE) == made
        assert file.read_bytes() == whole


def test_programs_do_not_meet_in_the_folder(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_compile", lambda *_: b"\x7fELF")
    settings = list(product(["bulk", "async", "hopper_conv"], [(9, 0), (10, 0)], range(3), [4, 5], [2, 3]))
    for name, capability, *values in settings:
        program.compiled(name, capability, [*zip(("ELEMENT", "STAGES", "PREFETCH"), values, strict=True)])
    assert len(list(kept.iterdir())) == len(settings)


def test_a_folder_that_cannot_be_written_does_not_matter(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.parent.joinpath("file").touch()
    monkeypatch.setattr(program, "cache_folder", lambda: kept.parent / "file" / "kernels")
    monkeypatch.setattr(program, "_compile", lambda *_: b"\x7fELF and more")
    assert program.compiled(*ONE) == b"\x7fELF and more"


@pytest.mark.parametrize(("name", "arch"), [("bulk", "sm_90"), ("hopper_conv", "sm_90a")])
def test_what_speaks_to_one_generation_is_compiled_for_it(
    name: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(program, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(program, "_compiler", lambda: "NVRTC 13.0")
    monkeypatch.setattr(program, "_compile", lambda _text, _macros, arch: asked.append(arch) or b"\x7fELF")
    program.compiled(name, (9, 0), [("ELEMENT", 1)])
    assert asked == [arch]
