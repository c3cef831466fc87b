"""The exporter comes without what it makes nothing of; whoever wants that later has it. In processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LATER = """
    import torch
    before = {*sys.modules}
    from tvae.pipeline.engine.capture.shortcuts.loading import _COMPILER, load_exporter
    load_exporter()
    load_exporter()
    assert "torch.export._trace" in sys.modules
    assert not {"networkx", *_COMPILER} & sys.modules.keys() - before
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
    x = torch.randn(2, 4, requires_grad=True)
    compiled = torch.compile(module, backend="aot_eager_decomp_partition")
    gradient, = torch.autograd.grad(compiled(x).sum(), x)
    expected, = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(gradient, expected)
    assert _COMPILER.keys() <= sys.modules.keys()
    from torch._functorch import aot_autograd, partitioners
    from torch._functorch._aot_autograd import autograd_cache
    assert aot_autograd.AOTAutogradCache.clear is autograd_cache.AOTAutogradCache.clear
    assert aot_autograd.default_partition.__code__ is partitioners.default_partition.__code__
    import copy
    assert copy.deepcopy(aot_autograd.default_partition).__name__ == "default_partition"
"""
THERE = """
    import torch._functorch.partitioners as there
    from tvae.pipeline.engine.capture.shortcuts.loading import load_exporter
    load_exporter()
    assert sys.modules["torch._functorch.partitioners"] is there
    from torch._functorch import aot_autograd
    assert aot_autograd.default_partition is there.default_partition

    import sympy
    from tvae.pipeline.engine.capture.shortcuts.loading import plain_sizes
    n = sympy.Symbol("n", integer=True)
    with plain_sizes():
        assert sympy.simplify((2 * n + 4) / 2 + 0 * n) == n + 2
        assert not hasattr(sys.modules["sympy.tensor.tensor"], "__file__")
        assert not hasattr(sys.modules["sympy.physics.units"], "__file__")
    from sympy.physics import units
    from sympy.tensor.tensor import TensExpr, tensor_indices, TensorIndexType
    assert units.meter + units.meter == 2 * units.meter
    assert isinstance(sympy.physics.units.meter, units.Quantity)
    kind = TensorIndexType("L")
    i, j = tensor_indices("i,j", kind)
    assert isinstance(kind.metric(i, j) + kind.metric(j, i), TensExpr)
    assert sys.modules["sympy.tensor.tensor"].__file__ and sys.modules["sympy.physics.units"].__file__
"""
MEANWHILE = """
    import threading
    from tvae.pipeline.engine.capture.shortcuts import loading
    found = []
    def other():
        from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
        found.append((default_partition, min_cut_rematerialization_partition))
    with loading._without({"torch._functorch.partitioners": {"default_partition": None}}):
        from torch._functorch.partitioners import default_partition
        assert default_partition is None
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    from torch._functorch import partitioners
    assert found == [(partitioners.default_partition, partitioners.min_cut_rematerialization_partition)]
"""
MORE = """
    from tvae.pipeline.engine.capture.shortcuts import loading
    loading._COMPILER["torch._functorch.partitioners"] = ()
    loading.load_exporter()
    from torch._functorch import aot_autograd, partitioners
    assert aot_autograd.default_partition is partitioners.default_partition
"""


@pytest.mark.parametrize(
    "script", [LATER, *(pytest.param(each, marks=pytest.mark.slow) for each in (THERE, MEANWHILE, MORE))]
)
def test_what_is_spared_is_loaded_when_it_is_wanted(script: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", "import sys\n" + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
