"""AutoencoderKL's graph as we write it: diffusers' names and numbers, for the configurations that we know in full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from slow_but import slow_but
from tiny_vaes import TINY, TinyVAE, relative_l2
from torch import Tensor

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph, Ref, evaluate, map_refs
from tvae.pipeline.engine.passes import optimise, simplify
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models import kl
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.load import load_module, locate_vae
from tvae.pipeline.session import new_graph
from tvae.pipeline.session.model import open_model

TINY_ONE = TINY["AutoencoderKL"]
BUILTIN = locate_vae("builtin").config
OTHERS: list[dict[str, Any]] = [
    {},
    {"use_quant_conv": False, "layers_per_block": 2, "latent_channels": 16},
    {"use_post_quant_conv": False, "mid_block_add_attention": False, "in_channels": 4, "out_channels": 2},
    {"block_out_channels": (24, 16, 32), "act_fn": "swish"},
]
SIDES: tuple[Side, ...] = ("encode", "decode")
WEIGHTS = "diffusion_pytorch_model.safetensors"


def with_changes(changes: dict[str, Any]) -> TinyVAE:
    return TinyVAE("AutoencoderKL", TINY_ONE.config | changes, TINY_ONE.latent, TINY_ONE.scale)


def run(graph: Graph, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """One operation of PyTorch's after the other, on the whole input; every value has the shape that the graph says."""
    sizes, values = graph.bind([tuple(x.shape)]), list[Tensor]()
    assert sizes is not None
    for node in graph.nodes:
        if node.kind == "call":
            _, name, overload = node.target.split(".")
            args = map_refs(node.args, lambda leaf: values[leaf.id] if isinstance(leaf, Ref) else evaluate(leaf, sizes))
            values.append(getattr(getattr(torch.ops.aten, name), overload)(*args))
        else:
            values.append(x if node.kind == "input" else weights[node.target])
        assert values[-1].shape == tuple(evaluate(n, sizes) for n in node.meta.shape), node.target
    return values[graph.outputs[0]]


def graph(config: Any, side: Side, batch: int = 2) -> Graph:
    found = kl.config_of(config)
    assert found is not None
    return kl.graph_of(found, side, batch, torch.float64)


@pytest.mark.parametrize("changes", OTHERS)
@pytest.mark.parametrize("size", slow_but([((21, 18),), ((4, 7),)], [((16, 24),), ((21, 18),), ((4, 7),)]))
def test_the_numbers_are_those_of_diffusers(changes: dict[str, Any], size: tuple[int, int]) -> None:
    theirs: Any = with_changes(changes).build().double()
    config, generator, weights = theirs.config, torch.Generator().manual_seed(1), theirs.state_dict()
    x = torch.randn(2, config["in_channels"], *size, dtype=torch.float64, generator=generator)
    z = torch.randn(2, config["latent_channels"], *size, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        moments = theirs.encode(x).latent_dist.parameters
        assert relative_l2(run(graph(config, "encode"), x, weights), moments) < 1e-13
        assert relative_l2(run(graph(config, "decode"), z, weights), theirs.decode(z).sample) < 1e-13


def test_the_builtin_has_the_numbers_of_diffusers() -> None:
    theirs: Any = load_module(locate_vae("builtin"), torch.float32).double()
    x, z = torch.rand(1, 3, 40, 24).double() * 2 - 1, torch.randn(1, 16, 5, 3).double()
    with torch.no_grad():
        moments, pixels = theirs.encode(x).latent_dist.parameters, theirs.decode(z).sample
    assert relative_l2(run(graph(BUILTIN, "encode", 1), x, theirs.state_dict()), moments) < 1e-13
    assert relative_l2(run(graph(BUILTIN, "decode", 1), z, theirs.state_dict()), pixels) < 1e-13


@pytest.mark.parametrize("side", ["encode", "decode"])
def test_the_operations_are_those_of_a_capture(side: Side) -> None:
    """In their order, after every pass: what the engine does with them was measured on captures."""
    theirs = TINY_ONE.build()
    x = TINY_ONE.input(side, 6, 8)

    def called(x: Tensor) -> list[Tensor]:
        model: Any = theirs
        return [model.encode(x).latent_dist.parameters if side == "encode" else model.decode(x).sample]

    captured = simplify(capture(theirs, called, [x]))
    mine = kl.graph_of(kl.config_of(theirs.config), side, 1, torch.float32)  # type: ignore[arg-type]
    for bias in (False, True):
        found, expected = (optimise(g, subpixel=True, bias=bias) for g in (mine, captured))
        assert calls(found) == calls(expected)


def calls(graph: Graph) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Operations, and the shapes of the weights that each reads."""
    return [
        (n.op, [graph.nodes[i].meta.shape for i in n.reads if graph.nodes[i].kind == "param"])  # type: ignore[misc]
        for n in graph.nodes
        if n.kind == "call"
    ]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 17), (40, 8), (23, 9)])
def test_small_pictures_through_the_engine(height: int, width: int) -> None:
    """Down to latents of one pixel, in strips of one row, on either side."""
    model, theirs = open_model("builtin", device="cpu", strip=1), load_module(locate_vae("builtin"), torch.float32)
    x, reference = torch.rand(2, 3, height, width) * 2 - 1, cast(Any, theirs)
    with torch.no_grad():
        mean = reference.encode(x).latent_dist.mean
        assert relative_l2(model.encode(x).mean, mean) < 1e-5
        assert relative_l2(model.decode(mean), reference.decode(mean).sample) < 1e-5


def test_less_than_a_latent_is_not_served() -> None:
    assert graph(BUILTIN, "encode").bind([(2, 3, 7, 64)]) is None


def test_public_shapes_are_known() -> None:
    """And their weights have diffusers' names and shapes."""
    from diffusers import AutoencoderKL

    for config in (BUILTIN, *(c.config for c in FAMILIES["AutoencoderKL"].checkpoints.values())):
        with torch.device("meta"):
            theirs = AutoencoderKL.from_config(config).state_dict()
        nodes = [n for side in SIDES for n in graph(json.loads(json.dumps(config)), side).nodes if n.kind == "param"]
        assert {n.target: n.meta.shape for n in nodes} == {n: t.shape for n, t in theirs.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"act_fn": "gelu"},
        {"down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D")},
        {"up_block_types": ("UpDecoderBlock2D",)},
        {"norm_num_groups": None},
        {"norm_num_groups": 5},
        {"latent_channels": True},
        {"layers_per_block": 0},
        {"block_out_channels": []},
        {"block_out_channels": (16, 32.0, 32)},
        {"block_out_channels": 16},
        {"down_block_types": 3},
        {"act_fn": ["silu"]},
        {"spatial_norm": True},
    ],
)
def test_what_is_not_known_goes_through_diffusers(changes: dict[str, Any]) -> None:
    assert kl.config_of(TINY_ONE.config | changes) is None


def test_defaults_are_those_of_diffusers() -> None:
    from diffusers import AutoencoderKL

    theirs = dict(AutoencoderKL().config)
    assert kl.config_of({}) == kl.config_of(theirs)


def test_weights_that_do_not_fit_are_told_as_ever(tmp_path: Path) -> None:
    model: Any = TINY_ONE.build()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    del weights["quant_conv.bias"]
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(UsageError, match=r"missing quant_conv\.bias"):
        open_model(str(tmp_path), device="cpu").encode(torch.zeros(1, 3, 16, 16))


def test_nothing_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_graph, "capture", lambda *_: pytest.fail("a capture"))
    TINY_ONE.build().save_pretrained(tmp_path)  # type: ignore[operator]
    model = open_model(str(tmp_path), device="cpu")
    assert model.decode(model.encode(torch.zeros(3, 3, 16, 24)).mean).shape == (3, 3, 16, 24)
