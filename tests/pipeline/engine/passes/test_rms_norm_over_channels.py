"""Normalisation of pixels by the root mean square over dimension 1, as LTX-2 spells it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, graph_of, layers, live, name, only, picture, results
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.passes.norms import fuse_rms_norm


def divided_by_the_root(m: Layers, x: Tensor) -> Outputs:
    """LTX's."""
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8)


def times_the_root(m: Layers, x: Tensor) -> Outputs:
    return x * torch.rsqrt(x.pow(2).mean(-3, keepdim=True) + 1e-3) * m.gamma + m.beta


def silu_of_the_quotient(m: Layers, x: Tensor) -> Outputs:
    return F.silu(divided_by_the_root(m, x))


FOUND: dict[Fn, tuple[float, bool, str | None]] = {
    divided_by_the_root: (1e-8, False, None),
    times_the_root: (1e-3, True, None),
    silu_of_the_quotient: (1e-8, False, "silu"),
}


@pytest.mark.parametrize("fn", FOUND, ids=name)
def test_it_is_found(fn: Fn) -> None:
    """The rewritten graph gives the model's numbers, too (``all_rewritten``)."""
    done = all_rewritten(fuse_rms_norm, *FOUND)[fn]
    _, weight, bias, eps, form, act, offset = only(done, "rms_norm_act").args
    assert (eps, weight is not None, bias is not None, act) == (FOUND[fn][0], *[FOUND[fn][1]] * 2, FOUND[fn][2])
    assert (form, offset) == ("rms", None)
    assert len(live(done)) == 1


def in_one_narrow_type(m: Layers, x: Tensor) -> Outputs:
    y = x.bfloat16()
    return y / torch.sqrt(torch.mean(y**2, dim=1, keepdim=True) + 1e-3)


def by_wider_roots(m: Layers, x: Tensor) -> Outputs:
    """The result has the wider type."""
    y = x.bfloat16()
    return y / torch.sqrt(torch.mean(y.float() ** 2, dim=1, keepdim=True) + 1e-3)


@pytest.mark.parametrize(("fn", "found"), [(in_one_narrow_type, 1), (by_wider_roots, 0)], ids=["one", "two"])
def test_narrow_types(fn: Fn, found: int) -> None:
    done = fuse_rms_norm(graph_of(fn, picture()))
    assert count(done).get("rms_norm_act", 0) == found
    with torch.no_grad():
        want = fn(layers(), picture())
    (value,) = results(done, picture(), 3)
    torch.testing.assert_close(value, want, rtol=2**-6, atol=1e-3)  # the model rounds squares, their mean and its root


def a_root_of_another(m: Layers, x: Tensor) -> Outputs:
    return x / torch.sqrt(torch.mean(x.tanh() ** 2, dim=1, keepdim=True) + 1e-3)


def a_root_that_is_a_result(m: Layers, x: Tensor) -> Outputs:
    root = torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-3)
    return x / root, root


def a_root_of_rows(m: Layers, x: Tensor) -> Outputs:
    return x / torch.sqrt(torch.mean(x**2, dim=2, keepdim=True) + 1e-3)


def a_root_of_channels_and_columns(m: Layers, x: Tensor) -> Outputs:
    return x / torch.sqrt(torch.mean(x**2, dim=(1, 3), keepdim=True) + 1e-3)


def a_root_of_cubes(m: Layers, x: Tensor) -> Outputs:
    return x / torch.sqrt(torch.mean(x**3, dim=1, keepdim=True) + 9.0)


def times_the_root_itself(m: Layers, x: Tensor) -> Outputs:
    return x * torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-3)


def divided_by_the_inverse(m: Layers, x: Tensor) -> Outputs:
    return x / torch.rsqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-3)


def the_root_divided_by_it(m: Layers, x: Tensor) -> Outputs:
    return torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-3) / (x + 4.0)


def a_root_of_tokens(m: Layers, x: Tensor) -> Outputs:
    y = x.flatten(2)
    return y / torch.sqrt(torch.mean(y**2, dim=1, keepdim=True) + 1e-3)


OTHERS = (
    *(a_root_of_another, a_root_that_is_a_result, a_root_of_rows, a_root_of_channels_and_columns, a_root_of_cubes),
    *(times_the_root_itself, divided_by_the_inverse, the_root_divided_by_it, a_root_of_tokens),
)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_what_looks_alike_stays(fn: Fn) -> None:
    assert "rms_norm_act" not in count(all_rewritten(fuse_rms_norm, *OTHERS)[fn])


class OfWeights(nn.Module):
    """What is normalised has no rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.gains = nn.Parameter(torch.randn(1, 8, 1, 1))

    def encode(self, x: Tensor) -> Tensor:
        return x

    def decode(self, z: Tensor) -> Tensor:
        root = torch.sqrt(torch.mean(self.gains**2, dim=1, keepdim=True) + 1e-6)
        return self.last(self.first(z) * (self.gains / root))  # type: ignore[no-any-return]


class OfRows(OfWeights):
    """Dimension 1 is the height."""

    def decode(self, z: Tensor) -> Tensor:
        h = self.first(z).permute(0, 2, 3, 1)
        root = torch.sqrt(torch.mean(h**2, dim=1, keepdim=True) + 1e-6)
        return self.last((h / root).permute(0, 3, 1, 2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [OfWeights, OfRows], ids=lambda kind: kind.__name__)
def test_where_no_pixels_are_normalised(kind: type[OfWeights]) -> None:
    model, z = kind().eval(), torch.randn(1, 4, 16, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, want = TiledVAE(model, strip=3).decode(z), model.double().decode(z.double())
    assert float((found - want).norm() / want.norm()) <= 1e-5
