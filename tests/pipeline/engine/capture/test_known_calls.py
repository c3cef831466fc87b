"""Calls that the exporter is spared: the graph is the one it would have written, and what differs is followed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture import export_settings as settings
from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.capture.shortcuts import known_calls


class Decoder(nn.Module):
    """Some convolutions with a cache each, kept in a list that the caller gives, and a position in it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv3d(4, 4, (2, 3, 3), padding=(0, 1, 1)) for _ in range(3))
        self.norms = nn.ModuleList(nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.Identity()) for _ in range(4))
        self.scale, self.seen, self.calls = 1.0, None, 0
        self.memory: list[Tensor] = []

    def forward(self, x: Tensor, cache: Any = None, at: list[int] | None = None, **flags: Any) -> Tensor:
        for n, conv in enumerate(self.convs):
            key = n if at is None else at[0]
            before = None if cache is None else cache[key]
            kept = x[:, :, -1:].clone()
            if cache is not None:
                cache[key] = kept
            if at is not None:
                at[0] += 1
            x = self.norms[n](conv(torch.cat([kept if before is None else before, x], dim=2)))
        return x * self.scale if flags.get("scaled", True) else x


class Clip(nn.Module):
    """Goes over a clip frame by frame; what else it does is the test's."""

    def __init__(self, call: Callable[[Clip, Tensor, int], Tensor]) -> None:
        super().__init__()
        self.decoder = Decoder()
        self.cache: Any = [None] * 3
        self.call = call

    def forward(self, x: Tensor) -> list[Tensor]:
        self.cache = dict.fromkeys(range(3)) if isinstance(self.cache, dict) else [None] * 3
        self.decoder.scale, self.decoder.seen, self.decoder.calls, self.decoder.memory = 1.0, None, 0, []
        return [torch.cat([self.call(self, x[:, :, n : n + 1], n) for n in range(x.shape[2])], dim=2)]


def _alike(clip: Clip, frame: Tensor, n: int) -> Tensor:
    return clip.decoder(frame, cache=clip.cache, at=[0])


def _caches_by_name(clip: Clip, frame: Tensor, n: int) -> Tensor:
    if n == 0:
        clip.cache = dict.fromkeys(range(3))
    return clip.decoder(frame, clip.cache)


def _another_scale(clip: Clip, frame: Tensor, n: int) -> Tensor:
    clip.decoder.scale = 1.0 + n
    return clip.decoder(frame, clip.cache, [0])


def _a_flag_in_turn(clip: Clip, frame: Tensor, n: int) -> Tensor:
    return clip.decoder(frame, clip.cache, [0], scaled=n % 2 == 0)


def _minus_nothing(clip: Clip, frame: Tensor, n: int) -> Tensor:
    clip.decoder.scale = -0.0 if n == 4 else 0.0
    return clip.decoder(frame, clip.cache, [0])


def _a_wider_frame(clip: Clip, frame: Tensor, n: int) -> Tensor:
    wide = torch.cat([frame] * (1 + n % 2), dim=-1)
    return clip.decoder(wide, [None] * 3)[..., : frame.shape[-1]]


def _one_cache_for_two(clip: Clip, frame: Tensor, n: int) -> Tensor:
    cache = [frame, frame, frame] if n % 2 else [frame, frame * 1, frame]
    y = clip.decoder(frame, cache)
    return y + cache[1]


def _its_own_argument(clip: Clip, frame: Tensor, n: int) -> Tensor:
    cache: list[Any] = [None] * 3
    y = clip.decoder(frame, cache)
    return y + frame * cache[0]


class _Noting(Decoder):
    """Counts its calls, so that no two are alike."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.calls += 1
        return super().forward(x, *args, **kwargs) * self.calls


class _Remembering(Decoder):
    """Keeps a tensor in a list of its own."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y = super().forward(x, *args, **kwargs)
        if self.memory:
            y = y + self.memory[-1]
        self.memory.append(y)
        return y


class _Processor:
    """What a module may hold that is no module."""

    def __init__(self) -> None:
        self.calls, self.itself = 0, self


class _Delegating(Decoder):
    """Has a helper count its calls."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        helper: Any = self.seen
        y = super().forward(x, *args, **kwargs) * (1 + helper.calls % 2)
        helper.calls += 1
        return y


def _with_a_helper(clip: Clip, frame: Tensor, n: int) -> Tensor:
    if n == 0:
        clip.decoder.seen = _Processor()  # type: ignore[assignment]
    return clip.decoder(frame, clip.cache, [0])


class _Reaching(Decoder):
    """Reads a tensor that is neither given nor its own."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(x, *args, **kwargs) + _Reaching.outside[0]

    outside: tuple[Tensor, ...] = ()


def _from_outside(clip: Clip, frame: Tensor, n: int) -> Tensor:
    _Reaching.outside = (frame * (n + 1),)
    return clip.decoder(frame, clip.cache, [0])


FRAMES = 6


@pytest.mark.parametrize(
    ("call", "decoder", "spared"),
    [
        # the first call has no caches, the second is followed
        pytest.param(_alike, Decoder, FRAMES - 2, id="alike"),
        pytest.param(_caches_by_name, Decoder, FRAMES - 2, id="caches by name"),
        pytest.param(_another_scale, Decoder, 0, id="an attribute changes"),
        pytest.param(_a_flag_in_turn, Decoder, FRAMES - 3, id="a flag in turn"),
        pytest.param(_minus_nothing, Decoder, FRAMES - 3, id="minus nothing"),
        pytest.param(_a_wider_frame, Decoder, FRAMES - 3, id="two widths"),
        pytest.param(_one_cache_for_two, Decoder, FRAMES - 3, id="which tensors are one"),
        pytest.param(_its_own_argument, Decoder, FRAMES - 2, id="an argument in the result"),
        pytest.param(_alike, _Noting, 0, id="counts its calls"),
        pytest.param(_alike, _Remembering, 0, id="remembers"),
        pytest.param(_with_a_helper, Decoder, FRAMES - 2, id="a helper"),
        pytest.param(_with_a_helper, _Delegating, 0, id="a helper counts"),
        pytest.param(_from_outside, _Reaching, 0, id="a tensor from outside"),
    ],
)
def test_the_graph_is_the_same(
    call: Callable[[Clip, Tensor, int], Tensor], decoder: type[Decoder], spared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    again = known_calls._Call.again
    monkeypatch.setattr(known_calls._Call, "again", lambda *args: found.append(args[0]._path) or again(*args))
    monkeypatch.setattr(known_calls, "_LEAST_MODULES", 12)
    clip, x = Clip(call), torch.randn(1, 4, FRAMES, 10, 12)
    clip.decoder = decoder()
    ours = capture(clip, clip.forward, [x])
    assert sum(path.endswith(".decoder") for path in found) == spared
    assert sum(path.endswith((".convs.1", ".norms.2")) for path in found) > 0  # like .convs.0 and .norms.1 before
    monkeypatch.setattr(settings, "known_calls", nullcontext)
    theirs = capture(clip, clip.forward, [x])
    assert repr(ours.nodes) == repr(theirs.nodes)  # 0.0 equals -0.0
    assert (ours.outputs, ours.guards) == (theirs.outputs, theirs.guards)


def test_what_goes_by_once_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "_Call", lambda *_: pytest.fail("looked at"))
    monkeypatch.setattr(known_calls, "_LEAST_MODULES", 12)
    clip = Clip(_alike)
    capture(clip, clip.forward, [torch.randn(1, 4, 1, 10, 12)])


def test_a_hook_that_counts_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_calls, "_LEAST_MODULES", 12)
    clip, x = Clip(_alike), torch.randn(1, 4, FRAMES, 10, 12)
    clip.decoder.register_forward_hook(lambda module, _args, y: y * module.__dict__.setdefault("of_hook", [1])[0])
    ours = capture(clip, clip.forward, [x])
    monkeypatch.setattr(settings, "known_calls", nullcontext)
    theirs = capture(clip, clip.forward, [x])
    assert ours.nodes == theirs.nodes
