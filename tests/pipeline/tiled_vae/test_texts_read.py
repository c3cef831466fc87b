"""Models whose Python code asks for the text of a tensor: each call goes by the text of that moment, or is refused."""

from __future__ import annotations

import copy
import logging
import pprint
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import TvaeError, UnsupportedOp

_log = logging.getLogger("model")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Inside(nn.Module):
    """Does what a function says, of the model's weights and a value."""

    def __init__(self, of: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.of, self.factor = of, nn.Parameter(torch.tensor(0.5))
        self.register_buffer("table", torch.tensor([1.0, 2.0]))

    def forward(self, h: Tensor) -> Tensor:
        return self.of(self, h)


class Model(ModelOfFunction):
    def __init__(self, of: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(of)
        self.inside = Inside(of)

    def encode(self, x: Tensor) -> Tensor:
        return self.conv(self.inside(self.conv(x)))

    decode = encode


def by_f_string(model: Any, h: Tensor) -> Tensor:
    return h * 2 if "0.5" in f"{model.factor}" else h - 1


def by_str(model: Any, h: Tensor) -> Tensor:
    return h * 2 if str(model.factor.detach()).startswith("tensor(0.5") else h - 1


def by_repr(model: Any, h: Tensor) -> Tensor:
    return h * 2 if "Parameter containing:\ntensor(0.5" in repr(model.factor) else h - 1


def by_percent(model: Any, h: Tensor) -> Tensor:
    return h * len("%s" % model.factor.detach().double())  # noqa: UP031


def by_format(model: Any, h: Tensor) -> Tensor:
    return h * float(f"{model.factor.detach():.2f}") + float(format(model.factor.detach(), ".1f"))


def by_a_list(model: Any, h: Tensor) -> Tensor:
    return h * 2 if "0.5" in str([model.factor]) else h - 1


def by_what_is_computed(model: Any, h: Tensor) -> Tensor:
    return h * float(f"{(model.factor * 2 + 1).detach()}".split("(")[-1].split(",")[0].rstrip(")"))


FOLLOWED = [by_f_string, by_str, by_repr, by_percent, by_format, by_a_list, by_what_is_computed]


def agrees(tiled: TiledVAE, model: nn.Module, rows: int = 9) -> None:
    """With the model's own call; that in float64 would have other texts."""
    x = torch.randn(1, 3, rows, 6)
    with torch.no_grad():
        got, want = tiled.encode(x), model.encode(x)  # type: ignore[operator]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("of", FOLLOWED, ids=lambda of: of.__name__)
def test_texts_are_those_of_the_call(of: Callable[[Any, Tensor], Tensor]) -> None:
    tiled = TiledVAE(model := Model(of).eval(), "cpu", strip=2)
    for value in (0.5, 0.25, 123.0, 0.5):
        with torch.no_grad():
            model.inside.factor.fill_(value)
        agrees(tiled, model)
        model.inside.factor.data.fill_(value / 2)
        agrees(tiled, model, 4)
    assert tiled.plan((1, 3, 9, 6), "encode").strips > 1


# -- what stays refused ------------------------------------------------------------------------------------------------
def of_several(model: Any, h: Tensor) -> Tensor:
    return h * 2 if "2." in f"{model.table}" else h - 1


def of_the_input(model: Any, h: Tensor) -> Tensor:
    return h * len(str(h.mean()))


def pretty(model: Any, h: Tensor) -> Tensor:
    return h * len(pprint.pformat({"h": h}))


@pytest.mark.parametrize("of", [of_several, of_the_input, pretty], ids=lambda of: of.__name__)
def test_texts_of_other_values_are_refused(of: Callable[[Any, Tensor], Tensor]) -> None:
    tiled = TiledVAE(Model(of).eval(), "cpu", strip=2)
    for _ in range(2):
        with pytest.raises(UnsupportedOp, match=r"operation 'str' in module 'inside' .*the text of a tensor"):
            tiled.encode(torch.randn(1, 3, 9, 6))


# -- what is only said -------------------------------------------------------------------------------------------------
def printed(model: Any, h: Tensor) -> Tensor:
    print("mean", h.mean(), f"{h.std():.3f}", [model.table])
    return h * 2


def printed_by_another(model: Any, h: Tensor) -> Tensor:
    (lambda value: print(f"mean {value.mean():.3f}"))(h)
    return h * 2


def logged(model: Any, h: Tensor) -> Tensor:
    _log.warning("mean %s", h.mean())
    _log.warning(
        "and "
        f"{h.std():.3f}"
    )  # fmt: skip
    return h * 2


def warned(model: Any, h: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn(f"of {h}", stacklevel=2)
    return h * 2


def told_if_wrong(model: Any, h: Tensor) -> Tensor:
    if h.ndim != 4:
        raise ValueError(f"not {h}")
    return h * 2


def pretty_print(model: Any, h: Tensor) -> Tensor:
    pprint.pprint({"h": h.mean()})
    return h * 2


@pytest.mark.parametrize(
    "of", [printed, printed_by_another, logged, warned, told_if_wrong, pretty_print], ids=lambda of: of.__name__
)
def test_what_is_only_said_stands_in_no_way(
    of: Callable[[Any, Tensor], Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(of).eval()
    tiled, wide, x = TiledVAE(model, "cpu", strip=2), copy.deepcopy(model).double(), torch.randn(1, 3, 9, 6)
    with torch.no_grad():
        got, want = tiled.encode(x), wide.encode(x.double())
    assert float((got - want).norm() / want.norm()) < 1e-5


def test_the_models_own_error_has_its_own_words() -> None:
    def wrong(model: Any, h: Tensor) -> Tensor:
        if h.shape[2] == 9:
            raise ValueError(f"nine rows of {h.mean():.1f}")
        return h

    with pytest.raises(TvaeError, match="nine rows of"):
        TiledVAE(Model(wrong).eval(), "cpu", strip=2).encode(torch.randn(1, 3, 9, 6))
