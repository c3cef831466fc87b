"""A launch in a rehearsal: the kernel is built once for each of its specialisations, and not launched."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)

from tvae.kernels import current
from tvae.kernels.prebuild import rehearsal, wait_for_all
from tvae.kernels.triton import launch as launching
from tvae.kernels.triton.launch import launch
from tvae.kernels.triton.specialised import specialisation


class Kernel:
    """What ``launch`` knows of a kernel; its third argument is not specialised."""

    def __init__(self) -> None:
        self.params = [SimpleNamespace(do_not_specialize=n == 2) for n in range(4)]
        self.device_caches: dict[int, Any] = {0: None}
        self.built: list[tuple[Any, ...]] = []
        self.launched: list[tuple[int, ...]] = []

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
        self.built.append((*args, options))
        return SimpleNamespace(run=None)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.launched.append(grid)


def test_one_build_for_each_specialisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    kernel, x = Kernel(), torch.zeros(64)
    launch(kernel, (7,), x, 16, 5, 1.0, BLOCK=4)
    assert (kernel.launched, kernel.built) == ([(7,)], [])
    with rehearsal() as builds:
        for n in (16, 32, 160):  # 16 divides them
            launch(kernel, (n,), x, n, 5, 1.0, BLOCK=4)
        assert len(builds) == 1
        for other in (17, 1, 2**40):
            launch(kernel, (1,), x, other, 5, 1.0, BLOCK=4)
        assert len(builds) == 4
        launch(kernel, (1,), x, 16, 6, 2.0, BLOCK=4)  # an integer that is not specialised, a float
        assert len(builds) == 4
        launch(kernel, (1,), x, 16, 2**40, 1.0, BLOCK=4)  # but for its width
        launch(kernel, (1,), x, 16, 5, 1.0, BLOCK=8)
        launch(kernel, (1,), x, 16, 5, 1.0, BLOCK=4, FLAG=True)
        launch(kernel, (1,), x.half(), 16, 5, 1.0, BLOCK=4)
        launch(kernel, (1,), x[1:], 16, 5, 1.0, BLOCK=4)
        assert len(builds) == 9
    wait_for_all()
    assert len(kernel.built) == 9
    assert kernel.launched == [(7,)]


def test_a_build_holds_no_memory_but_sees_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    kernel, x = Kernel(), torch.zeros(1 << 20, dtype=torch.float16)
    with rehearsal():
        launch(kernel, (1,), x, 16, 5, 1.0)
        launch(kernel, (1,), x[3:], 16, 5, 1.0)
    wait_for_all()
    for (like, *others, _), aligned in zip(kernel.built, (True, False), strict=True):
        assert like.dtype == x.dtype
        assert like.untyped_storage().nbytes() < 100
        assert (like.data_ptr() % 16 == 0) == aligned
        assert others == [16, 5, 1.0]


def test_a_launch_waits_for_its_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    go = threading.Event()

    class Slow(Kernel):
        def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
            go.wait(10)
            return super().warmup(*args, grid=grid, **options)

    slow, quick, x = Slow(), Kernel(), torch.zeros(64)
    with rehearsal():
        launch(quick, (1,), x, 16, 5, 1.0)
        launch(slow, (1,), x, 16, 5, 1.0)
    launch(quick, (2,), x, 32, 5, 1.0)
    launch(slow, (2,), x, 17, 5, 1.0)  # another specialisation, which nobody asked for
    assert (quick.launched, slow.launched) == ([(2,)], [(2,)])
    waiting = threading.Thread(target=launch, args=(slow, (3,), x, 48, 5, 1.0))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert len(slow.launched) == 1
    go.set()
    waiting.join(10)
    assert slow.launched == [(2,), (3,)]
    assert len(slow.built) == 1


def test_what_looks_the_same_is_launched_without_tritons_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel gets a grid of three dimensions, the device's current stream, and constants behind the
    arguments, in its order."""
    monkeypatch.setattr(current, "device", lambda: 3)
    monkeypatch.setattr(current, "stream", lambda device: 100 + device)
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "_MADE", {})
    direct: list[tuple[Any, ...]] = []

    class Compiled:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, stream: direct.append((grid, stream, *args))

    class Found(Kernel):
        arg_names = ("x", "size", "count", "eps", "BLOCK", "FLAG")

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def run(*args: Any, **options: Any) -> Compiled:
                self.launched.append(grid)
                return Compiled()

            return run

    kernel, x = Found(), torch.zeros(64)
    options: dict[str, Any] = {"FLAG": True, "BLOCK": 4, "num_warps": 8}
    launch(kernel, (7,), x, 16, 5, 1.0, **options)
    other = torch.ones(32)
    launch(kernel, (3, 2), other, 16, 5, 1.0, **options)
    assert (kernel.launched, len(direct)) == ([(7,)], 1)
    grid, stream, given, *rest = direct[0]
    assert (grid, stream) == ((3, 2, 1), 103)
    assert given is other
    assert rest == [16, 5, 1.0, 4, True]
    launch(kernel, (5,), x, 4096, 1, 1.0, **options)  # another size, which the kernel was built for as well
    assert direct.pop() == ((5, 1, 1), 103, x, 4096, 1, 1.0, 4, True)
    launch(kernel, (5,), x, 16, 5, 2.0, **options)  # nor are there kernels of one float
    assert direct.pop() == ((5, 1, 1), 103, x, 16, 5, 2.0, 4, True)
    for changed in ((x, 17, 5, 1.0), (x, 1, 5, 1.0), (x[1:], 16, 5, 1.0), (x.half(), 16, 5, 1.0), (x, 16, 2**31, 1.0)):
        launch(kernel, (1,), *changed, **options)
    launch(kernel, (1,), x, 16, 5, 1.0, **{**options, "BLOCK": 8})
    launch(kernel, (1,), x, 16, 5, 1.0, **{**options, "num_warps": 4})
    assert len(kernel.launched) == 8
    assert len(direct) == 1


def told(value: Any, *, fixed: bool) -> Any:
    """What a kernel of one parameter is specialised for; fixed: not for more than its type."""
    kernel = type("Kernel", (), {"params": [type("Parameter", (), {"do_not_specialize": fixed})]})
    return specialisation(kernel, 0, (value,), {})[2:]


def test_a_tensor_may_be_specialised_for_its_type_alone() -> None:
    x = torch.zeros(64)
    for like in (Tensor, torch.nn.Parameter):
        one, other, half = (like(t) for t in (x, x[1:], x.half()))
        assert told(one, fixed=False) != told(other, fixed=False)
        assert told(one, fixed=True) == told(other, fixed=True) != told(half, fixed=True)


def test_what_is_known_of_launches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_MOST", 3)
    found: dict[Any, Any] = {}
    for n in range(10):
        launching._add(found, n, str(n))
        assert found[n] == str(n)
        assert len(found) <= 3


@pytest.mark.parametrize("fixed", [False, True])
def test_integers_of_one_form_are_the_same_to_triton(fixed: bool) -> None:
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    edges = [n + more for n in (0, 16, 2**31, -(2**31), 2**62, 2**63, -(2**63)) for more in range(-2, 3)]
    numbers = [*edges, *torch.randint(-(2**40), 2**40, (200,)).tolist(), *range(-40, 200)]
    theirs: dict[Any, set[Any]] = {}
    for n in (n for n in numbers if -(2**63) <= n < 2**64):
        theirs.setdefault(told(n, fixed=fixed), set()).add(
            native_specialize_impl(BaseBackend, n, False, not fixed, True)
        )
    assert all(len(each) == 1 for each in theirs.values())
    assert len(theirs) < 14  # most sizes share a kernel
    assert told(True, fixed=fixed) not in theirs
