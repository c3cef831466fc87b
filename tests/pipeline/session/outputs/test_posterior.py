"""Posteriors: our own against diffusers', and the models' own classes as they come back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from distributions import Dirac, Drawing, Forgotten, InPlace, Late, Lazy, Loose, Named, Needy, OfLdm, OfSgm, Stored
from inside import compiled_of
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.errors import UsageError
from tvae.pipeline.session.captures import Captured
from tvae.pipeline.session.outputs import (
    Posterior,
    Spec,
    add_trials,
    check_spec,
    flatten,
    is_known,
    posterior_of,
    rebuild,
    settle,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 8, 3, 5, 7)], ids=["image", "video"])
def test_a_seed_draws_what_diffusers_draws(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """But for one rounding: mean + std·noise is one operation here and two there."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    moments = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    ours, theirs = Posterior.from_moments(moments), DiagonalGaussianDistribution(moments)
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.std, theirs.std)
    assert torch.equal(ours.mode(), theirs.mode())
    seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
    got, want = ours.sample(seeds[0]), theirs.sample(seeds[1])
    assert got.dtype == dtype
    noise = (want - theirs.mean).double()
    bound = torch.finfo(dtype).eps * (noise.abs() + want.double().abs())
    assert ((got.double() - want.double()).abs() <= bound).all()
    assert torch.equal(torch.randn(3, generator=seeds[0]), torch.randn(3, generator=seeds[1]))  # as much was drawn


def test_log_variances_are_clamped_as_diffusers_does() -> None:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    moments = torch.tensor([0.0, 0.0, -1e4, 1e4]).view(1, 4, 1, 1)
    assert torch.equal(Posterior.from_moments(moments).std, DiagonalGaussianDistribution(moments).std)


def test_a_point_is_its_own_sample() -> None:
    point = Posterior(torch.randn(1, 4, 3, 3), None)
    assert torch.equal(point.sample(torch.Generator()), point.mean)
    assert torch.equal(point.std, torch.zeros_like(point.mean))


def changed(h: Tensor) -> Late:
    """The constructor's object, and then another mean."""
    found = Late(h)
    found.mean = found.mean - 1
    return found


class Encoder(nn.Module):
    """Encodes to a distribution."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.down, self.up, self.give = nn.Conv2d(3, 8, 4, 4), nn.ConvTranspose2d(4, 3, 4, 4), give

    def encode(self, x: Tensor) -> Any:
        return self.give(self.down(x))

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z)


def encoded(give: Callable[[Tensor], Any]) -> tuple[Any, Any, Captured]:
    """(ours, theirs, what was captured)."""
    model = Encoder(give)
    tiled = TiledVAE(model, strip=2)
    x = torch.randn(2, 3, 28, 20, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = tiled.encode(x), model.encode(x.clone())
    ((captured,),) = (graphs.values() for compiled in compiled_of(tiled) for graphs in [compiled.captures._graphs])
    return ours, theirs, captured[0]


def close(ours: Any, theirs: Any) -> None:
    """Equal within 1e-5."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("give", "outputs"),
    [
        (OfLdm, 1),
        (lambda h: OfLdm(h, deterministic=True), 1),
        (lambda h: OfSgm(h, True), 1),
        (Dirac, 1),
        (Lazy, 1),
        (lambda h: Stored(h, 1 / 3, floor=-0.5), 5),
        (lambda h: Forgotten(h, 3.0), 5),
        (lambda h: Forgotten(h, 2.0), 5),
        (lambda h: Named(h), 1),
        (lambda h: Named(h, kind="other"), 5),
        (InPlace, 5),
        (Drawing, 5),
        (lambda h: Needy(h, None), 5),
        (changed, 5),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a_model_gets_its_own_distribution_back(give: Callable[[Tensor], Any], outputs: int) -> None:
    """Field by field and method by method, in as few outputs as are enough."""
    ours, theirs, captured = encoded(give)
    assert len(captured.graph.outputs) == outputs
    assert type(ours) is type(theirs)
    assert list(vars(ours)) == list(vars(theirs))
    for name, value in vars(theirs).items():
        held = getattr(ours, name)
        assert type(held) is type(value)
        if isinstance(value, Tensor):
            assert held.dtype == value.dtype
            close(held, value)
        else:
            assert held == value
    close(ours.mode(), theirs.mode())
    draws = []
    for one in (ours, theirs):
        torch.manual_seed(5)
        draws.append(one.sample())
    close(*draws)
    if hasattr(theirs, "kl"):
        close(ours.kl(), theirs.kl())
        close(ours.nll(draws[1]), theirs.nll(draws[1]))
        other = OfLdm(torch.randn(2, 8, 7, 5, generator=torch.Generator().manual_seed(6)))
        close(ours.kl(other), theirs.kl(other))


def test_a_deterministic_one_is_not_random() -> None:
    ours, theirs, captured = encoded(lambda h: OfLdm(h, deterministic=True))
    assert torch.equal(ours.sample(), ours.mean)
    assert not ours.std.any()
    assert not ours.var.any()
    assert ours.std is ours.var
    assert ours.kl().item() == 0
    found = posterior_of(captured.spec, [theirs.parameters])
    assert found.logvar is None
    assert torch.equal(found.mean, theirs.mean)


def test_a_constant_of_another_value_is_another_computation() -> None:
    """The graph of a mean times 3 is no proof of one times 2."""

    class Moments(Forgotten):
        def __init__(self, parameters: Tensor, scale: float = 2.0) -> None:
            super().__init__(parameters, scale)
            self.mean, self.logvar = self.parameters.chunk(2, 1)
            self.std, self.var = torch.exp(0.5 * self.logvar.clamp(-30.0, 20.0)), self.mean * scale
            self.logvar = self.logvar.clamp(-30.0, 20.0)

    for scale, outputs in ((2.0, 1), (3.0, 5)):
        ours, theirs, captured = encoded(lambda h, scale=scale: Moments(h, scale))  # type: ignore[misc]
        assert len(captured.graph.outputs) == outputs
        close(ours.var, theirs.var)


def test_what_is_dropped_leaves_nothing_in_the_graph() -> None:
    model, x = Encoder(OfLdm), torch.zeros(1, 3, 8, 12)
    spec: Spec = {}

    def traced(x: Tensor) -> list[Tensor]:
        tensors, found = add_trials(*flatten(model.encode(x)))
        spec.update(found)
        return tensors

    graph, _ = settle(simplify(capture(model, traced, [x])), spec)
    assert [node.op for node in graph.nodes if node.kind == "call"] == ["conv2d"]


def test_what_is_tried_draws_no_noise() -> None:
    """Else a model would draw more from the caller's generator than it does by itself."""
    for give, draws in ((Drawing, 1), (OfLdm, 0)):
        captured = encoded(give)[2]
        assert sum("randn" in node.op for node in captured.graph.nodes) == draws


def read(spec: Spec, captured: Captured) -> Spec:
    """The description as another process reads it."""
    graph = captured.graph
    return check_spec(json.loads(json.dumps(spec)), [len(graph.nodes[i].meta.shape) for i in graph.outputs])


@pytest.mark.parametrize(
    ("give", "point"),
    [(OfLdm, False), (Lazy, False), (lambda h: Forgotten(h, 3.0), False), (Dirac, True), (OfSgm, False)],
)
def test_mean_and_log_variance_are_known_without_the_class(
    give: Callable[[Tensor], Any], point: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, theirs, captured = encoded(give)
    spec = read(captured.spec, captured)
    assert is_known(spec)
    holding = [theirs.parameters if hasattr(theirs, "parameters") else theirs.value]
    if len(captured.graph.outputs) > 1:
        holding = [v for v in vars(theirs).values() if isinstance(v, Tensor)]
    monkeypatch.setattr("sys.modules", {})
    found = posterior_of(spec, holding)
    assert torch.equal(found.mean, theirs.mode())
    assert (found.logvar is None) == point
    if found.logvar is not None:
        assert torch.equal(found.logvar, theirs.logvar)


def test_what_the_graph_does_not_prove_is_refused_by_name() -> None:
    ours, theirs, captured = encoded(Loose)
    close(ours.std, theirs.std)
    with pytest.raises(UsageError, match="whose mean and log variance"):
        posterior_of(captured.spec, [torch.ones(1, 8, 1, 1)] * 5)


def test_pytorchs_own_distributions_come_back() -> None:
    theirs = torch.distributions.Normal(torch.zeros(2, 3), torch.ones(2, 3) * 2)
    tensors, spec = flatten(theirs)
    ours = rebuild(check_spec(json.loads(json.dumps(spec)), [2, 2]), tensors)
    assert type(ours) is torch.distributions.Normal
    assert ours.batch_shape == theirs.batch_shape
    close(ours.log_prob(torch.ones(2, 3)), theirs.log_prob(torch.ones(2, 3)))


def test_a_description_from_disk_gives_the_same_object() -> None:
    ours, theirs, captured = encoded(lambda h: OfLdm(h, deterministic=True))
    again = rebuild(read(captured.spec, captured), [theirs.parameters])
    assert type(again) is OfLdm
    assert again.deterministic
    assert torch.equal(again.sample(), theirs.mean)
    assert math.isclose(float(ours.mean.sum()), float(again.mean.sum()), rel_tol=1e-4)
