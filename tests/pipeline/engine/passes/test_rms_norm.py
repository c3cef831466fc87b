"""RMS norms in their three spellings become one operation, and nothing else does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import (
    Fn,
    Layers,
    Outputs,
    all_rewritten,
    count,
    graph_of,
    layers,
    live,
    name,
    only,
    picture,
    results,
    rewritten,
)
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.passes.norms import fuse_rms_norm


def normalised(m: Layers, x: Tensor) -> Tensor:
    """Wan's: the length of a pixel's channels, at least some number."""
    return F.normalize(x, dim=1) * 2.0 * m.gamma  # the root of four channels


def root_mean_square(m: Layers, x: Tensor) -> Tensor:
    """Channels last, and back."""
    y = x.movedim(1, -1)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-3)
    return (y * m.gain).movedim(-1, 1)


def with_a_weight(m: Layers, x: Tensor) -> Outputs:
    return normalised(m, x)


def with_a_bias(m: Layers, x: Tensor) -> Outputs:
    return normalised(m, x) + m.beta


def without_weights(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, dim=1, eps=0.5) * 2.0


def with_a_bias_alone(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, dim=1) * 2.0 + m.beta


def square(m: Layers, x: Tensor) -> Outputs:
    return root_mean_square(m, x)


def square_without_weights(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 0.5)).movedim(-1, 1)


def square_with_a_bias(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 0.5) * m.gain + m.shift).movedim(-1, 1)


BARE: dict[Fn, tuple[str, float, bool, bool]] = {
    with_a_weight: ("normalize", 1e-12, True, False),
    with_a_bias: ("normalize", 1e-12, True, True),
    without_weights: ("normalize", 0.5, False, False),
    with_a_bias_alone: ("normalize", 1e-12, False, True),
    square: ("rms", 1e-3, True, False),
    square_without_weights: ("rms", 0.5, False, False),
    square_with_a_bias: ("rms", 0.5, True, True),
}


@pytest.mark.parametrize("fn", BARE, ids=name)
def test_a_normalisation_is_found_in_either_spelling(fn: Fn) -> None:
    done = all_rewritten(fuse_rms_norm, *BARE)[fn]
    node = only(done, "rms_norm_act")
    _, weight, bias, eps, form, act, offset = node.args
    assert offset is None
    assert (form, eps, weight is not None, bias is not None) == BARE[fn]
    assert act is None
    assert len(live(done)) == 1


def silu(m: Layers, x: Tensor) -> Outputs:
    return F.silu(normalised(m, x) + m.beta)


def silu_of_the_square(m: Layers, x: Tensor) -> Outputs:
    return F.silu(root_mean_square(m, x))


def silu_in_place(m: Layers, x: Tensor) -> Outputs:
    return F.silu(normalised(m, x), inplace=True)


ACTIVE = (silu, silu_of_the_square, silu_in_place)


@pytest.mark.parametrize("fn", ACTIVE, ids=name)
def test_the_activation_behind_it_joins(fn: Fn) -> None:
    done = all_rewritten(fuse_rms_norm, *ACTIVE)[fn]
    assert only(done, "rms_norm_act").args[5] == "silu"
    assert len(live(done)) == 1


@pytest.mark.parametrize("norm", [normalised, root_mean_square], ids=lambda f: f.__name__)
def test_clips_are_found_too(norm: Fn) -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        if norm is root_mean_square:
            return F.silu(root_mean_square(m, x))
        return F.silu(F.normalize(x, dim=1) * 2.0 * m.deep)

    done = rewritten(fn, fuse_rms_norm, picture(2, 4, 3, 6, 5))
    assert only(done, "rms_norm_act").args[1] is not None
    assert len(live(done)) == 1


def in_a_wider_type(m: Layers, x: Tensor) -> Outputs:
    """As it is spelled for narrow types: the weight is narrow, sums and the product are not."""
    y = x.bfloat16().movedim(1, -1)
    root = torch.rsqrt(y.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-3)
    return F.silu(((y * root).to(torch.bfloat16)).movedim(-1, 1))


def in_a_wider_type_with_a_weight(m: Layers, x: Tensor) -> Outputs:
    y = x.bfloat16().movedim(1, -1)
    root = torch.rsqrt(y.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-3)
    return ((y * root).to(torch.bfloat16) * m.narrow).movedim(-1, 1)


def by_the_roots_of_another(m: Layers, x: Tensor) -> Outputs:
    """Of what is widened, but not of what is multiplied."""
    y, other = x.bfloat16().movedim(1, -1), (2 * x.bfloat16()).movedim(1, -1)
    root = torch.rsqrt(other.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-3)
    return ((y * root).to(torch.bfloat16)).movedim(-1, 1)


def that_stays_wide(m: Layers, x: Tensor) -> Outputs:
    y = x.bfloat16().movedim(1, -1)
    return (y * torch.rsqrt(y.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-3)).movedim(-1, 1)


NARROW: dict[Fn, tuple[int, str | None, bool]] = {
    in_a_wider_type: (1, "silu", False),
    in_a_wider_type_with_a_weight: (1, None, True),
    by_the_roots_of_another: (0, None, False),
    that_stays_wide: (0, None, False),
}


@pytest.mark.parametrize("fn", NARROW, ids=name)
def test_sums_in_a_wider_type_are_what_the_operation_does_anyway(fn: Fn) -> None:
    found, act, weight = NARROW[fn]
    done = fuse_rms_norm(graph_of(fn, picture()))
    assert count(done).get("rms_norm_act", 0) == found
    with torch.no_grad():
        want = fn(layers(), picture())
    (value,) = results(done, picture(), 3)
    torch.testing.assert_close(value, want, rtol=2**-7, atol=1e-3)  # sums in another order may round the other way
    if found:
        _, scale, bias, eps, form, active, _ = only(done, "rms_norm_act").args
        assert (scale is not None, bias, eps, form, active) == (weight, None, 1e-3, "rms", act)


def norm_read_twice(m: Layers, x: Tensor) -> Outputs:
    h = normalised(m, x)
    return F.silu(h) * h


def norm_that_is_a_result(m: Layers, x: Tensor) -> Outputs:
    h = root_mean_square(m, x)
    return F.silu(h), h


APART = (norm_read_twice, norm_that_is_a_result)


@pytest.mark.parametrize("fn", APART, ids=name)
def test_an_activation_stays_where_the_norm_is_read_elsewhere(fn: Fn) -> None:
    done = all_rewritten(fuse_rms_norm, *APART)[fn]
    assert only(done, "rms_norm_act").args[5] is None
    assert count(done)["silu"] == 1


def another_factor(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, dim=1) * 3.0 * m.gamma


def no_factor(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, dim=1) * m.gamma


def across_the_width(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, dim=3) * 2.0


def another_length(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, p=1.0, dim=1) * 2.0


def the_length_of_another(m: Layers, x: Tensor) -> Outputs:
    length = torch.linalg.vector_norm(x.tanh(), 2, 1, True).clamp_min(1e-12)
    return x / length.expand_as(x) * 2.0


def another_power(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.pow(4).mean(-1, keepdim=True) + 1e-3)).movedim(-1, 1)


def a_mean_of_more(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.pow(2).mean((-2, -1), keepdim=True) + 1e-3)).movedim(-1, 1)


def a_mean_of_everything(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.pow(2).mean() + 1e-3)).movedim(-1, 1)


def a_mean_of_another(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.tanh().pow(2).mean(-1, keepdim=True) + 1e-3)).movedim(-1, 1)


def another_way_back(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(1, -1)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-3)).movedim(-1, 2)


def another_way_there(m: Layers, x: Tensor) -> Outputs:
    y = x.movedim(2, -1)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-3)).movedim(-1, 1)


OTHERS = (
    *(another_factor, no_factor, across_the_width, another_length, the_length_of_another, another_power),
    *(a_mean_of_more, a_mean_of_everything, a_mean_of_another, another_way_back),
    another_way_there,
)


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_what_looks_alike_stays(fn: Fn) -> None:
    assert "rms_norm_act" not in count(all_rewritten(fuse_rms_norm, *OTHERS)[fn])


def weights_of_columns(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x[..., :4], dim=1) * 2.0 * m.gain


def weights_of_pictures(m: Layers, x: Tensor) -> Outputs:
    return F.normalize(x, dim=1) * 2.0 * m.deep


@pytest.mark.parametrize("fn", [weights_of_columns, weights_of_pictures], ids=name)
def test_weights_along_another_dimension_of_as_many_stay_outside(fn: Fn) -> None:
    done = rewritten(fn, fuse_rms_norm, picture(4, 4, 7, 5))
    assert only(done, "rms_norm_act").args[1] is None
    assert count(done)["mul"] == 1


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


OTHERS_channels = (
    *(a_root_of_another, a_root_that_is_a_result, a_root_of_rows, a_root_of_channels_and_columns, a_root_of_cubes),
    *(times_the_root_itself, divided_by_the_inverse, the_root_divided_by_it, a_root_of_tokens),
)


@pytest.mark.parametrize("fn", OTHERS_channels, ids=name)
def test_what_looks_alike_stays_channels(fn: Fn) -> None:
    assert "rms_norm_act" not in count(all_rewritten(fuse_rms_norm, *OTHERS_channels)[fn])


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
