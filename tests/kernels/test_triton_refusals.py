"""What the Triton kernels do not take is refused or told before anything runs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
from kernel_inputs import channels_last

from tvae.kernels import native
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton import IMPLEMENTATIONS, missing
from tvae.kernels.triton.finish import finish_stats
from tvae.kernels.triton.norm import norm_act
from tvae.kernels.triton.rms import rms_norm_act
from tvae.kernels.triton.statistics import add_stats, group_stats

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_what_is_not_taken_is_refused() -> None:
    x = channels_last(torch.ones(2, 4, 6, 6)).to(DEVICE)
    one = torch.ones(2, 2, 4, device=DEVICE)
    clip = channels_last(torch.ones(2, 4, 4, 4, 4)).to(DEVICE)
    refused = [x.contiguous(), x.double(), x[:, :, :0], clip[:, :, ::2, ::2, ::2], x[:, :2].int(), x[0, :, 0]]
    for t in refused:
        with pytest.raises(Unsupported):
            group_stats(t)
        with pytest.raises(Unsupported):
            add_stats(x, t, None, None, True)
        with pytest.raises(Unsupported):
            add_stats(x, x, None, t, True)
        if t.ndim > 2:
            with pytest.raises(Unsupported):
                norm_act(t, one[:, :, : t.shape[1]], None)
            with pytest.raises(Unsupported):
                rms_norm_act(t, None, None, 1e-6, "rms", None)
    with pytest.raises(Unsupported, match="float64"):
        finish_stats(group_stats(x), 2, 1e-6, torch.ones(4, dtype=torch.float64, device=DEVICE), None, None)


def test_wrong_shapes_are_told() -> None:
    x = channels_last(torch.ones(2, 4, 6, 6)).to(DEVICE)
    vector = torch.ones(3, device=DEVICE)
    for call in (
        lambda: norm_act(x, torch.ones(2, 1, 4, device=DEVICE), None),
        lambda: norm_act(x, torch.ones(2, 2, 4, device=DEVICE), "gelu"),
        lambda: add_stats(x, x, vector, None, True),
        lambda: finish_stats(group_stats(x), 3, 1e-6, None, None, None),
        lambda: finish_stats(group_stats(x), 2, 1e-6, vector, None, None),
        lambda: finish_stats(x, 2, 1e-6, None, None, None),
        lambda: rms_norm_act(x, vector, None, 1e-6, "rms", None),
        lambda: rms_norm_act(x, None, None, 1e-6, "layer", None),
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            call()
        assert not isinstance(caught.value, Unsupported)


def test_the_level_is_there() -> None:
    assert missing() is None
    assert set(IMPLEMENTATIONS) <= set(native.IMPLEMENTATIONS)
