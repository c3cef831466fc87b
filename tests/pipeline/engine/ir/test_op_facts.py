"""The table of facts against PyTorch: its schemas, its tags, and what the operations do with a small tensor."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.pipeline.engine.ir.fused_ops import uneven_conv
from tvae.pipeline.engine.ir.op_facts import (
    CASTS,
    CONVOLUTIONS,
    NEAREST,
    NOISE,
    PLAIN_CONVOLUTIONS,
    VIEWS,
    Elements,
    Memory,
    is_turned,
    is_view,
    rearranges,
)

aten = torch.ops.aten

NOT_DENSE = {
    *("_indices", "_values", "indices", "values", "coalesce", "_sparse_broadcast_to", "_nested_get_values"),
    *("ccol_indices", "col_indices", "crow_indices", "row_indices"),
    *("_nested_view_from_buffer", "_nested_view_from_jagged"),
}
"""Of sparse and nested tensors."""
NOT_IN_GRAPHS = {
    *("_autocast_to_full_precision", "_autocast_to_reduced_precision", "as_tensor", "get", "keys", "pop", "setdefault"),
    *("local_value", "to_here", "_unwrap_optional", "_fw_primal", "_make_dual", "_unpack_dual", "_grad_sum_to_size"),
    *("align_to", "rename", "refine_names"),  # named dimensions, of PyTorch up to 2.12
    *("_ncf_unsqueeze", "_ncf_view", "_test_autograd_multiple_dispatch_view", "slice_inverse"),
}
"""TorchScript's, remote values', forward derivatives' and PyTorch's own tests'."""
UNSAID = {
    *("_unsafe_view", "type_as", "getitem"),
    *("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
}
"""They give their operand's memory, and their schemas do not say so."""


def test_every_operation_whose_schema_says_so_is_a_view() -> None:
    said = set()
    for schema in torch._C._jit_get_all_schemas():
        names = [r.alias_info for r in schema.returns if r.alias_info is not None and not r.alias_info.is_write]
        if schema.name.startswith("aten::") and names:
            said.add(schema.name.removeprefix("aten::"))
    said = {name for name in said if not name.endswith("_")}
    assert said - NOT_DENSE - NOT_IN_GRAPHS <= set(VIEWS)
    assert not said & UNSAID
    assert set(VIEWS) - UNSAID <= said


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "expand": ((3, 2, 4, 6),),
    "broadcast_to": ((3, 2, 4, 6),),
    "view": ((2, 24),),
    "_unsafe_view": ((2, 24),),
    "reshape": ((2, 24),),
    "view_as": (torch.empty(2, 24),),
    "reshape_as": (torch.empty(2, 24),),
    "expand_as": (torch.empty(3, 2, 4, 6),),
    "type_as": (torch.empty(0),),
    "to": (torch.float32,),
    "unflatten": (2, (2, 3)),
    "unsqueeze": (1,),
    "permute": ((2, 0, 1),),
    "transpose": (1, 2),
    "movedim": (0, 2),
    "moveaxis": (0, 2),
    "swapaxes": (1, 2),
    "swapdims": (1, 2),
    "slice": (2, 1, 5),
    "narrow": (2, 1, 4),
    "select": (1, 2),
    "split": (2, 1),
    "split_with_sizes": ((1, 3), 1),
    "chunk": (2, 1),
    "tensor_split": (2, 1),
    "hsplit": (2,),
    "vsplit": (2,),
    "dsplit": (2,),
    "unfold": (2, 2, 2),
    "as_strided": ((2, 2), (24, 1)),
    "_reshape_alias": ((2, 24), (24, 1)),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), (0.5, False)),
}
TWO_DIMENSIONS = {"t", "mT", "mH", "matrix_H", "numpy_T", "adjoint"}
COMPLEX = {"real", "imag", "view_as_real", "_conj"}
ELSEWHERE = {"getitem", "cuda", "pin_memory"}
"""Not an operator, and what needs a GPU."""


def operand(name: str) -> Tensor:
    """Of different elements, that lie in a row."""
    x = torch.arange(48.0).reshape((6, 8) if name in TWO_DIMENSIONS else (2, 4, 6))
    if name == "view_as_complex":
        return x.reshape(2, 4, 3, 2)
    return torch.complex(x, x + 0.5) if name in COMPLEX else x


def done(name: str, x: Tensor) -> list[Tensor]:
    """Its results."""
    call: Callable[..., Any] = getattr(x, name) if name in ("mT", "mH") else getattr(aten, name)
    found = call if isinstance(call, Tensor) else call(x, *ARGUMENTS.get(name, ()))
    return list(found) if isinstance(found, (list, tuple)) else [found]


def shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", sorted(set(VIEWS) - ELSEWHERE))
def test_a_view_is_what_the_table_says(name: str) -> None:
    x, kind = operand(name), VIEWS[name].elements
    results = done(name, x)
    assert all(shares(r, x) for r in results)
    if kind is Elements.OTHER:
        return
    elements = torch.cat([r.flatten() for r in results])
    every = x.flatten()
    if kind is Elements.ALL:
        assert torch.equal(results[0], x)
    elif kind is Elements.RESHAPED:
        assert torch.equal(elements, every)
    elif kind is Elements.TURNED:
        assert not results[0].is_contiguous()
        assert torch.equal(elements.sort().values, every)
    elif kind is Elements.REPEATED:
        assert len(elements) > len(every)
        assert torch.equal(elements.unique(), every)
    elif kind is Elements.RANGE:
        assert results[0].ndim == x.ndim
        assert len(elements) < len(every)
    else:
        assert len(results) > 1 or results[0].ndim < x.ndim
    assert torch.isin(elements, every).all()


@pytest.mark.parametrize("name", [n for n, view in VIEWS.items() if view.memory is Memory.IN_A_ROW])
def test_what_does_not_lie_in_a_row_is_copied(name: str) -> None:
    x = operand(name).transpose(0, 2)
    assert not any(shares(r, x) for r in done(name, x))


@pytest.mark.parametrize("name", ["to", "type_as"])
def test_another_type_is_a_copy(name: str) -> None:
    x = operand(name)
    assert not shares(getattr(aten, name)(x, *((torch.float16,) if name == "to" else (torch.empty(0).half(),))), x)


def test_what_the_engine_computes_as_views() -> None:
    assert is_view("reshape")
    assert is_view("permute")
    assert not is_view("contiguous")
    assert not is_view("conv2d")
    assert is_turned("t")
    assert not is_turned("slice")
    assert [name for name in ("permute", "slice", "expand", "select", "view", "alias", "add") if rearranges(name)] == [
        *("permute", "slice", "expand", "select")
    ]


@pytest.mark.parametrize("name", NEAREST)
def test_nearest_upsampling_copies_elements(name: str) -> None:
    dims = NEAREST[name]
    x = torch.rand(2, 3, *[4] * dims)
    y = getattr(aten, name).default(x, [9] * dims)
    assert y.shape == (2, 3, *[9] * dims)
    assert torch.isin(y, x).all()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_bias_of_a_convolution_is_its_third_argument(name: str) -> None:
    if name == "uneven_conv":
        assert list(signature(uneven_conv).parameters)[3] == "bias"  # after the kernels
        return
    overload = getattr(aten, name).overloads()[0]
    assert getattr(getattr(aten, name), overload)._schema.arguments[2].name == "bias"
    if name in PLAIN_CONVOLUTIONS:
        dims = PLAIN_CONVOLUTIONS[name]
        assert getattr(aten, name)(torch.rand(1, 2, *[5] * dims), torch.rand(4, 2, *[3] * dims)).ndim == dims + 2


@pytest.mark.parametrize("name", CASTS)
def test_casts_keep_the_numbers(name: str) -> None:
    x, wide = torch.tensor([1.5, -2.0]), torch.float64
    calls: dict[str, Callable[[], Tensor]] = {
        "to": lambda: aten.to.dtype(x, wide),
        "_to_copy": lambda: aten._to_copy(x, dtype=wide),
        "type_as": lambda: aten.type_as(x, torch.empty(0, dtype=wide)),
    }
    y = calls[name]()
    assert y.dtype == wide
    assert torch.equal(y.float(), x)


@pytest.mark.parametrize("name", NOISE)
def test_noise_draws(name: str) -> None:
    packet = getattr(aten, name)
    assert torch.Tag.nondeterministic_seeded in getattr(packet, packet.overloads()[0]).tags
