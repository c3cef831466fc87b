"""What the exporter is spared leaves no trace: afterwards, and in other threads, everything is as before."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import fake_tensor
from torch.export import _trace
from torch.fx.experimental import proxy_tensor

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.capture.exporter import exporting
from tvae.pipeline.engine.capture.thread_patch import patched
from tvae.pipeline.errors import UnsupportedOp


def test_everything_is_as_before_afterwards() -> None:
    from torch.fx import _symbolic_trace

    places = (
        (fake_tensor.FakeTensorMode, "_cached_dispatch_impl"),
        (fake_tensor.FakeTensorMode, "_dispatch_impl"),
        (proxy_tensor, "_extract_tensor_metadata"),
        (proxy_tensor._ModuleStackTracer, "create_node"),
        (_trace, "_ignore_backend_decomps"),
        (_symbolic_trace._Patcher, "patch_method"),
        (_trace, "get_class_if_classified_error"),
        (torch.distributions.Distribution, "__init__"),
    )
    found = [place for place in places if hasattr(*place)]

    def state() -> list[object]:
        return [vars(place).get(name) for place, name in found]  # what is inherited is not left behind

    before = state()
    with exporting():
        assert all(now != then for now, then in zip(state(), before, strict=True))
    assert state() == before


def test_nothing_is_printed_where_a_model_asks_for_a_value(capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Conv2d(3, 3, 3)
    with pytest.raises(UnsupportedOp, match="data-dependent"):
        capture(model, lambda x: [x if model(x).mean().item() > 0 else -x], [torch.zeros(1, 3, 6, 6)])
    assert capfd.readouterr() == ("", "")


def test_what_is_inherited_is_so_again_and_what_others_put_there_stays() -> None:
    class Above:
        def name(self) -> str:
            return "above"

    class Below(Above):
        pass

    with patched(Below, "name", lambda _self: "here"):
        assert Below().name() == "here"
    assert "name" not in vars(Below)
    with patched(Above, "name", lambda _self: "here"), patched(Above, "missing", lambda: None):
        Above.name = lambda _self: "theirs"  # type: ignore[method-assign]
    assert Above().name() == "theirs"
    assert not hasattr(Above, "missing")


def test_other_threads_compile_as_ever() -> None:
    x, found = torch.randn(1, 8, 12, 10), []

    def other() -> None:
        traced = proxy_tensor.make_fx(lambda x: F.silu(x * 2).mean(1) + x, tracing_mode="fake")(x)
        found.extend(n.meta["tensor_meta"] for n in traced.graph.nodes if n.op == "call_function")

    with exporting():
        assert proxy_tensor._extract_tensor_metadata(x) is None
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(found) > 3
    assert None not in found
