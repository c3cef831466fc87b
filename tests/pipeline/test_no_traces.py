"""No trace of a call for anybody else: what another thread sees before, during and after a first call and a second."""

from __future__ import annotations

import copy
import gc
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch
from tiny_vaes import TINY, relative_l2
from torch import nn
from torch.export import Dim

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture import capture as capturing
from tvae.pipeline.engine.capture.exporter import exporting

KL = TINY["AutoencoderKL"]
PLACES = [
    *(("generic", "all"), ("cuda", "all"), ("cuda", "conv"), ("cuda", "rnn"), ("cuda", "matmul")),
    *(("mkldnn", "all"), ("mkldnn", "conv"), ("mkldnn", "rnn"), ("mkldnn", "matmul")),
]


def thread_sees() -> dict[str, Any]:
    """What a thread has for itself, and still must not be changed in another."""
    return {
        "default type": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
    }


@pytest.fixture(autouse=True, scope="module")
def nothing_frozen(_settled_heap: None) -> None:
    """Else the number of frozen objects falls whenever one of them goes."""
    gc.unfreeze()


def process() -> dict[str, Any]:
    """What everybody shares, and no call needs otherwise."""
    import torch._dynamo.config
    import torch._inductor.config

    cudnn, loggers = torch.backends.cudnn, logging.root.manager.loggerDict
    return {
        "cudnn": (cudnn.enabled, cudnn.deterministic, cudnn.benchmark_limit),
        "cuDNN, as PyTorch itself has it": torch._C._get_cudnn_enabled(),
        "oneDNN": (torch._C._get_mkldnn_enabled(), torch._C._get_mkldnn_deterministic()),
        "nnpack": torch.backends.nnpack.is_available() and torch._C._get_nnpack_enabled(),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.get_deterministic_debug_mode()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "logging": logging.root.manager.disable,
        "levels": {n: x.level for n, x in [*loggers.items()] if isinstance(x, logging.Logger) and n[:5] == "torch"},
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "dynamo": torch._dynamo.config.fake_tensor_cache_enabled,
        "reduced sums": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    }


def precision() -> dict[str, Any]:
    """What a float32 call on a GPU needs otherwise; on a CPU, where nobody allowed it to round, nothing."""
    found: dict[str, Any] = {".".join(place): torch._C._get_fp32_precision_getter(*place) for place in PLACES}
    old = {
        "matmul": torch.get_float32_matmul_precision,
        "cublas": torch._C._get_cublas_allow_tf32,
        "cudnn": torch._C._get_cudnn_allow_tf32,
    }
    for name, read in old.items():
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = "raises"
    return found | {"search": torch._C._get_cudnn_benchmark()}


def afterwards() -> dict[str, Any]:
    """What may look otherwise while a call is under way, but does nothing to others."""
    names = ("__call__", "__getattr__", "__setattr__")
    loggers = logging.root.manager.loggerDict
    muted = {n: [*x.filters] for n, x in [*loggers.items()] if isinstance(x, logging.Logger) and x.filters}
    return {
        "warnings": [*warnings.filters],
        "list of warnings": id(warnings.filters),
        "filters of loggers": muted,
        "modules": [vars(nn.Module).get(name) for name in names],
        "compiling": (torch.compiler.is_compiling(), torch.compiler.is_exporting()),
        "dispatching": torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
    }


SETTINGS: dict[str, Callable[[], None]] = {
    "default": lambda: None,
    "new": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "mixed": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "old": lambda: torch.set_float32_matmul_precision("medium"),
}


@pytest.fixture(params=SETTINGS)
def chosen(request: pytest.FixtureRequest) -> Any:
    SETTINGS[request.param]()
    yield request.param
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


def test_before_during_and_after(chosen: str) -> None:
    model = KL.build()
    capturing_warmed()
    tiled, x = TiledVAE(model), KL.input("decode", 9, 6)
    before, frozen = [thread_sees(), process(), precision(), afterwards()], gc.get_freeze_count()
    differing: dict[str, Any] = {}
    done, polled, deadline = threading.Event(), [0], time.monotonic() + 60

    def poll() -> None:
        while not done.is_set():
            for now, then in zip([thread_sees(), process()], before[:2], strict=True):
                differing.update({key: (then[key], now[key]) for key in then if now[key] != then[key]})
            if "raises" not in before[2].values():
                differing.update({key: "raises" for key, value in precision().items() if value == "raises"})
            polled[0] += 1
            done.wait(0.002)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        first = tiled.decode(x).sample
        captured = [thread_sees(), process(), precision(), afterwards()]
        second = tiled.decode(x).sample
        while polled[0] < 2 and time.monotonic() < deadline:  # a busy machine gives the other thread few turns
            tiled.decode(x)
    finally:
        done.set()
        thread.join()
    assert polled[0] > 1
    assert gc.get_freeze_count() - frozen < 1000, "others may let go of some; to freeze is to freeze all"
    assert differing == {}
    assert captured == before
    assert [thread_sees(), process(), precision(), afterwards()] == before
    with torch.no_grad():
        # in float64: with these settings, processors that multiply bfloat16 round the model's own call to it
        assert relative_l2(first, copy.deepcopy(model).double().decode(x.double()).sample) < 1e-5
    assert torch.equal(first, second)


def capturing_warmed() -> None:
    """What is imported once, and may log or set defaults as it is, does not count."""
    capturing.capture(nn.Conv2d(3, 3, 3), lambda x: [x * 2], [torch.zeros(1, 3, 8, 8)])


class Own(nn.Module):
    """Of another thread: norms, convolutions and a buffer that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def _exported(module: nn.Module) -> str:
    shapes = ({2: Dim.DYNAMIC, 3: Dim.DYNAMIC},)
    program = torch.export.export(module, (torch.zeros(2, 3, 8, 10),), dynamic_shapes=shapes, strict=False)
    nodes = [(n.target, n.args, sorted(n.meta), [*n.meta.get("nn_module_stack", {})]) for n in program.graph.nodes]
    return f"{nodes} {program.module().code}"


def _meanwhile(what: Callable[[], Any]) -> Any:
    """Its result, in another thread, while a model is captured in this one."""
    found: list[Any] = []

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            if not found:
                thread = threading.Thread(target=lambda: found.append(what()))
                thread.start()
                thread.join(60)
            return self.conv(y)

    module = Waits()
    graph = capturing.capture(module, lambda x: [module(x)], [torch.zeros(1, 3, 8, 8)])
    assert [n.target for n in graph.nodes if n.kind == "call"] == ["aten.conv2d.default"] * 2
    assert [n.module for n in graph.nodes if n.kind == "call"] == ["conv"] * 2
    return found[0]


@pytest.mark.long
def test_another_thread_exports_meanwhile() -> None:
    module = Own().eval()
    alone = _exported(module)
    assert _meanwhile(lambda: _exported(module)) == alone


def test_another_thread_calls_modules_meanwhile() -> None:
    """Its own, and the one that is captured: nobody is between."""
    calls: list[Any] = []

    def call() -> torch.Tensor:
        import traceback

        module = Own().eval()
        module.norm.register_forward_pre_hook(
            lambda *_: calls.extend(f.name for f in traceback.extract_stack() if "fx" in f.filename)
        )
        return module(torch.ones(1, 3, 5, 5))

    assert _meanwhile(call).shape == (1, 4, 5, 5)
    assert calls == []


def test_another_thread_imports_meanwhile() -> None:
    def look() -> Any:
        import importlib
        import sys

        found = importlib.import_module("sympy.tensor.tensor")
        import sympy.physics.units as units
        from sympy.tensor.tensor import TensExpr, TensorIndexType

        again = importlib.import_module("sympy.physics.units")
        same = sys.modules["sympy.physics.units"] is units is again and found is sys.modules["sympy.tensor.tensor"]
        return same, units.meter.name, TensExpr, TensorIndexType

    same, name, tensor, kind = _meanwhile(look)
    from sympy.tensor.tensor import TensExpr, TensorIndexType

    assert same
    assert (str(name), tensor, kind) == ("meter", TensExpr, TensorIndexType)


def test_others_that_trace_before_and_after_us_leave_nothing_behind() -> None:
    """Whoever takes the place of a module's call puts back what was there, in whatever order they come and go."""
    from torch.fx import _symbolic_trace

    call = nn.Module.__call__
    for ours_first in (True, False):
        theirs = _symbolic_trace._Patcher()
        with exporting():
            ours = _symbolic_trace._Patcher()
            if ours_first:
                ours.patch_method(nn.Module, "__call__", lambda *_args, **_kwargs: "ours")
                assert nn.Identity()(1) == "ours"
        theirs.patch_method(nn.Module, "__call__", lambda *_args, **_kwargs: "theirs")
        if not ours_first:
            with exporting():
                ours.patch_method(nn.Module, "__call__", lambda *_args, **_kwargs: "ours")
                assert nn.Identity()(1) == "ours"
            theirs.revert_all_patches()
            ours.revert_all_patches()
        else:
            ours.revert_all_patches()
            assert nn.Identity()(1) == "theirs"
            theirs.revert_all_patches()
            assert nn.Identity()(1) == 1  # takes itself out
        assert nn.Module.__call__ is call
