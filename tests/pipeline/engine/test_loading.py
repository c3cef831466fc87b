"""The exporter comes without what it makes nothing of; whoever wants that later has it. In processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LATER = """
    from tvae.pipeline.engine.loading import load_exporter
    load_exporter()
    load_exporter()
    assert "torch.export._trace" in sys.modules
    assert "networkx" not in sys.modules
    from torch._functorch._activation_checkpointing import graph_info_provider
    assert graph_info_provider.nx.DiGraph().number_of_nodes() == 0
    import networkx
    assert graph_info_provider.nx.DiGraph is networkx.DiGraph
    assert networkx.__file__ == graph_info_provider.nx.__file__
"""
THERE = """
    import networkx
    from tvae.pipeline.engine.loading import load_exporter
    load_exporter()
    assert sys.modules["networkx"] is networkx
"""
MEANWHILE = """
    import threading
    from tvae.pipeline.engine import loading
    found = []
    def other():
        import networkx as nx
        found.append(nx.DiGraph)
        import networkx.algorithms
        found.append(networkx.algorithms.shortest_path)
    sys.modules["networkx"] = loading._StandIn("networkx", {"DiGraph": None}, True)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    import networkx
    assert found == [networkx.DiGraph, networkx.algorithms.shortest_path]
"""
MORE = """
    import torch
    from tvae.pipeline.engine import loading
    loading._PLANS["networkx"] = ()
    loading.load_exporter()
    assert "networkx" in sys.modules
    import networkx
    networkx.DiGraph().add_edge(1, 2)
"""
SIZES = """
    import sympy
    from tvae.pipeline.engine.loading import plain_sizes
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


@pytest.mark.parametrize("script", [LATER, THERE, MEANWHILE, MORE, SIZES])
def test_what_is_spared_is_loaded_when_it_is_wanted(script: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", "import sys\n" + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
