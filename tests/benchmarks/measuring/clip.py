"""A clip through a video VAE by its steps or by its frames, as a job runs it; or through the module's own steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from card import card_of
from torch import Tensor

from measuring.compare import kept
from measuring.models import clip_of, folder_of, module_of
from tvae.pipeline.device import backend_settings, choose_preset
from tvae.pipeline.engine.run.storage import Done
from tvae.pipeline.errors import PlanError
from tvae.pipeline.models.stepping import Cuts
from tvae.pipeline.session.model import Model, open_model

__all__ = ["clip"]

Pass = Callable[[list[Tensor]], list[float]]
"""Runs the clip once, appends the results; seconds of each step, waiting for the device after it."""


def clip(request: dict[str, Any]) -> dict[str, Any]:
    """config, tiny, side, size, way (steps, frames, or module), dtype, device, preset; vram: GiB or None; passes: over
    the clip, the first of which captures and builds; save: file for the result or None.

    The answer: seconds of the first and of the last pass, of its first and its middle step, and bytes of tensors.
    Weights are on the device before anything is counted, where that can be.
    """
    card = card_of(request["device"])
    x = clip_of(request["config"], request["tiny"], request["side"], tuple(request["size"]))
    x = x.to(getattr(torch, request["dtype"]))
    run = {"steps": _steps, "frames": _frames, "module": _module}[request["way"]]
    passes, results = [], list[Tensor]()
    try:
        once, model = run(request, x, card)
        card.restart()
        for turn in range(request["passes"]):
            results.clear()
            last = turn == request["passes"] - 1 and request["save"] is not None
            passes.append(once(results if last else _Nothing()))
    except PlanError as refusal:
        return {"refused": str(refusal), "least": getattr(refusal, "enough", None)}
    steps = passes[-1]
    answer = {
        "first": sum(passes[0]),
        "seconds": sum(steps),
        "first_step": steps[0],
        "step": statistics.median(steps[2:] or steps),
        "steps": len(steps),
        "tensors": card.most_tensors(),
        "reserved": card.most_reserved(),
    }
    if request["save"] is not None:
        kept(torch.cat(results, 2), request["save"])
    if model is not None and request["way"] == "steps":
        answer["said"] = model.plan(tuple(x.shape), request["side"]).peak_bytes
    return answer


class _Nothing(list[Tensor]):
    """Takes results and forgets them, as a film's writer does."""

    def append(self, _value: Tensor) -> None:
        pass


def _steps(request: dict[str, Any], x: Tensor, card: Any) -> tuple[Pass, Model | None]:
    model = _opened(request)
    if model.stream(request["side"]) is None:
        raise ValueError(f"{request['config']} has no steps on its {request['side']} side")

    def once(results: list[Tensor]) -> list[float]:
        stream = model.stream(request["side"])
        assert stream is not None
        seconds = []
        for chunk in _chunks(x, stream.cuts):
            seconds.append(_timed(card, lambda c=chunk: stream.step(c), results))
        return seconds

    return once, model


def _frames(request: dict[str, Any], x: Tensor, card: Any) -> tuple[Pass, Model | None]:
    model = _opened(request)

    def once(results: list[Tensor]) -> list[float]:
        sink = _Sink(results)
        card.wait()
        start = time.perf_counter()
        model.run_frames(request["side"], _Source(x, model), sink)
        card.wait()
        return [time.perf_counter() - start]

    return once, model


def _module(request: dict[str, Any], x: Tensor, card: Any) -> tuple[Pass, Model | None]:
    """The module's own chunks, operation by operation: what anybody would write first."""
    module: Any = module_of(request["config"], request["tiny"], request["dtype"], str(card.device))
    step = getattr(module, f"{request['side']}_step")
    cuts = Cuts(1, 4 if request["side"] == "encode" else 1)
    preset = choose_preset(request["preset"], card.device)

    @torch.no_grad()
    def once(results: list[Tensor]) -> list[float]:
        caches: list[tuple[Tensor, ...]] = [()]
        seconds = []

        def run(chunk: Tensor) -> Tensor:
            found, caches[0] = step(chunk.to(card.device), caches[0])
            return found

        with backend_settings(preset, getattr(torch, request["dtype"])):
            for chunk in _chunks(x, cuts):
                seconds.append(_timed(card, lambda c=chunk: run(c), results))
        return seconds

    return once, None


def _opened(request: dict[str, Any]) -> Model:
    return open_model(
        str(folder_of(request["config"], request["tiny"], request["dtype"])),
        preset=request["preset"],
        dtype=request["dtype"],
        device=request["device"],
        vram=None if request["vram"] is None else f"{request['vram']}GiB",
    )


def _chunks(x: Tensor, cuts: Cuts) -> Iterator[Tensor]:
    done = 0
    for size in cuts.sizes(x.shape[2]):
        yield x[:, :, done : done + size].contiguous()
        done += size


def _timed(card: Any, run: Callable[[], Tensor], results: list[Tensor]) -> float:
    card.wait()
    start = time.perf_counter()
    found = run()
    card.wait()
    seconds = time.perf_counter() - start
    if not isinstance(results, _Nothing):
        results.append(found.cpu())
    return seconds


class _Source:
    """A clip on the host, its frames brought when they are asked for."""

    def __init__(self, clip: Tensor, model: Model) -> None:
        self._clip, self.shape = clip, tuple(clip.shape)
        self.dtype, self.device = model.dtype, model.device

    def fetch(self, lo: int, hi: int) -> Done:
        """Frames [lo, hi)."""
        return Done(self._clip[:, :, lo:hi].to(self.device, self.dtype))


class _Sink:
    """Results in the order in which they come."""

    def __init__(self, results: list[Tensor]) -> None:
        self._results = results

    def keep(self, _lo: int, _hi: int, rows: Tensor) -> Done:
        """Takes them to the host, if anybody wants them there."""
        if not isinstance(self._results, _Nothing):
            self._results.append(rows.cpu())
        return Done()
