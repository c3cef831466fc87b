"""Launches that come again for tensors of the same layouts: they start what was compiled for such tensors."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
from triton import knobs

from tvae.kernels import current
from tvae.kernels.prebuild import rehearsal, wait_for_all
from tvae.kernels.triton import launch as launching
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.specialised import specialisation

GPU = torch.device("cuda", 0)


class Compiled:
    """The n-th kernel, which notes that it runs."""

    function, packed_metadata = "the kernel", "its facts"

    def __init__(self, number: int, direct: list[tuple[Any, ...]]) -> None:
        self._number, self._direct = number, direct

    def run(self, x: int, y: int, z: int, stream: int, function: str, facts: str, *args: Any) -> None:
        """As Triton's launchers are called; three of the arguments are for hooks."""
        assert (stream, function, facts, *args[:3]) == (7, "the kernel", "its facts", None, None, None)
        self._direct.append((self._number, (x, y, z), *args[3:]))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, stream: int) -> None:
            assert stream == 7
            self._direct.append((self._number, grid, "told", *args))

        return run


class Kernel:
    """Notes which launches went through Triton, and which did not."""

    arg_names = ("x", "y", "size", "BLOCK", "FLAG")
    params = tuple(type("Parameter", (), {"do_not_specialize": False}) for _ in arg_names)

    def __init__(self) -> None:
        self.searched: list[tuple[Any, ...]] = []
        self.direct: list[tuple[Any, ...]] = []
        self.built: list[tuple[Any, ...]] = []
        self.device_caches = {0: None}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, **options: Any) -> Compiled:
            self.searched.append((grid, *args, options))
            return Compiled(len(self.searched), self.direct)

        return run

    def warmup(self, *args: Any, **options: Any) -> Any:
        self.built.append(args)
        return type("Made", (), {"src": None, "run": None})


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(current, "device", lambda: 0)
    monkeypatch.setattr(current, "stream", lambda _device: 7)
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "_MADE", {})
    monkeypatch.setattr(launching, "_READY", {})
    return Kernel()


def repeated(kernel: Kernel, size: int = 16) -> Repeated:
    return Repeated(kernel, (7, 2), (size,), {"FLAG": True, "BLOCK": 4, "num_warps": 8}, GPU)


def test_the_second_call_starts_what_the_first_has_compiled(kernel: Kernel) -> None:
    run, x, y, other = repeated(kernel), torch.zeros(64), torch.zeros(64), torch.ones(64)
    run(x, y)
    assert kernel.searched == [((7, 2), x, y, 16, {"FLAG": True, "BLOCK": 4, "num_warps": 8})]
    assert not kernel.direct
    run(other, y)
    run(x, other)
    assert len(kernel.searched) == 1
    assert [(grid, *rest) for _, grid, _, _, *rest in kernel.direct] == [((7, 2, 1), 16, 4, True)] * 2
    assert kernel.direct[0][2] is other
    assert kernel.direct[1][3] is other


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_hooks_hear_of_each_launch(kernel: Kernel, hook: str) -> None:
    """Profilers add them at any time."""
    run, x, chain = repeated(kernel), torch.zeros(64), getattr(knobs.runtime, hook)
    run(x, x)
    chain.add(print)
    try:
        run(x, x)
    finally:
        chain.remove(print)
    run(x, x)
    assert ["told" in launched[2:3] for launched in kernel.direct] == [True, False]
    with knobs.runtime.scope():
        setattr(knobs.runtime, hook, None)  # as who wants none may say
        run(x, x)
        setattr(knobs.runtime, hook, print)
        run(x, x)
    assert ["told" in launched[2:3] for launched in kernel.direct] == [True, False, False, True]


def test_tensors_that_a_kernel_takes_as_descriptors(kernel: Kernel) -> None:
    """Each call describes the memory that it is given, in the same boxes."""
    run = Repeated(kernel, (7, 2), (16,), {"FLAG": True, "BLOCK": 4}, GPU, ((8, 64),))
    tensors = [torch.zeros(32, 128) for _ in range(3)]
    for x in tensors:
        run(x, tensors[0])
    first = kernel.searched[0][1]
    others = [given for _, _, given, *_ in kernel.direct]
    assert len(kernel.searched) == 1
    for x, described in zip(tensors, [first, *others], strict=True):
        assert described.base is x
        assert (described.shape, described.strides) == ((32, 128), (128, 1))
        assert described.block_shape == [8, 64]
    assert all(y is tensors[0] for *_, y, _, _, _ in kernel.direct)


def test_another_layout_starts_the_same_kernel_at_once(kernel: Kernel) -> None:
    x = torch.zeros(64)
    repeated(kernel)(x, x)
    repeated(kernel, size=4096)(x, x)  # 16 divides it, too
    assert (len(kernel.searched), len(kernel.direct)) == (1, 1)
    repeated(kernel, size=17)(x, x)
    assert (len(kernel.searched), len(kernel.direct)) == (2, 1)


@pytest.mark.parametrize("changed", ["place", "type"])
def test_a_tensor_of_another_type_or_place_starts_another_kernel(kernel: Kernel, changed: str) -> None:
    run, x = repeated(kernel), torch.zeros(65)
    other = x[1:] if changed == "place" else x.half()
    run(x[:64], x[:64])
    run(x[:64], other)
    assert (len(kernel.searched), len(kernel.direct)) == (2, 0)
    run(x[:64], other)
    run(x[:64], x[:64])
    assert len(kernel.searched) == 2
    assert [number for number, *_ in kernel.direct] == [2, 1]


@pytest.mark.usefixtures("_no_reading")
def test_a_rehearsal_asks_for_the_kernel(kernel: Kernel) -> None:
    run, x = repeated(kernel), torch.zeros(64)
    with rehearsal() as builds:
        run(x, x)
        assert len(builds) == 1
    wait_for_all()
    assert not kernel.searched
    assert not kernel.direct


@pytest.fixture
def _no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_build", lambda kernel, *_: kernel.built.append(()))


def test_the_tensors_device_is_made_the_current_one(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = [0]

    @contextmanager
    def device(index: int) -> Any:
        entered.append(index)
        yield
        entered.pop()

    monkeypatch.setattr(current, "device", lambda: entered[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    seen: list[int] = []
    monkeypatch.setattr(launching, "specialisation", lambda kernel, index, *_: seen.append(index) or index)
    run = Repeated(kernel, (1,), (16,), {"BLOCK": 4, "FLAG": True}, torch.device("cuda", 3))
    run(torch.zeros(64), torch.zeros(64))
    assert set(seen) == {3}
    assert entered == [0]


def test_what_a_kernel_is_specialised_for() -> None:
    """Multiples of 16 and 1 are told apart from other integers, but where a parameter is not specialised; a flag is
    never an integer."""

    def parameters(*fixed: bool) -> Any:
        return type("Kernel", (), {"params": [type("P", (), {"do_not_specialize": one}) for one in fixed]})

    kernel, x = parameters(False, True, False), torch.zeros(65)

    def key(*args: Any, of: Any = kernel, **options: Any) -> Any:
        return specialisation(of, 0, args, options)

    assert key(32, 5, x) == key(64, 7, x[16:]) == key(16 << 26, 16, x)
    others = [
        *(key(33, 5, x), key(1, 5, x), key(32, True, x), key(True, 5, x), key(32, 5, x[1:]), key(32, 5, x.half())),
        *(key(1 << 31, 5, x), key(32, 1 << 31, x), key(32, -(2**31), x), key(32, 5.0, x), key(32, None, x)),
        *(key(32, 5, x, flag=True), key(32, 5, x, of=parameters(False, True, False)), key(32, 5, None)),
    ]
    assert len({key(32, 5, x), *others}) == 1 + len(others)
