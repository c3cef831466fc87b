"""One picture or clip in one call: ours in a budget, or the model's own, with times and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from card import card_of, seconds_of

from measuring.compare import kept
from measuring.models import clip_of, module_of
from tvae.pipeline import TiledVAE
from tvae.pipeline.bench.rivals import opened, tensor_of
from tvae.pipeline.device import backend_settings, choose_preset
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.errors import PlanError

__all__ = ["whole"]

Request = dict[str, Any]


def whole(request: Request) -> dict[str, Any]:
    """config, tiny, side, size, way (ours, diffusers or tiled), dtype, device, preset; vram: GiB or None; runs: calls
    after the first; save: file for the result or None.

    The answer: first and later seconds, bytes of tensors, and of ours what its plan said. Or refused, and the least.
    """
    card = card_of(request["device"])
    model = module_of(request["config"], request["tiny"], request["dtype"], str(card.device))
    card.restart()
    before = card.tensors()
    x = clip_of(request["config"], request["tiny"], request["side"], tuple(request["size"]))
    x = x.to(card.device, getattr(torch, request["dtype"]))
    answer: dict[str, Any] = {}
    tiled: TiledVAE | None = None
    preset = choose_preset(request["preset"], card.device)
    settings: AbstractContextManager[None] = nullcontext()
    if request["way"] == "ours":
        tiled = TiledVAE(model, request["preset"], vram=None if request["vram"] is None else f"{request['vram']}GiB")
        start = time.perf_counter()
        try:
            plan = tiled.plan(tuple(x.shape), request["side"])
        except PlanError as refusal:
            return {"refused": str(refusal), "least": getattr(refusal, "enough", None)}
        answer = {"planning": time.perf_counter() - start, **_said(plan)}
        run: Callable[[Any], Any] = getattr(tiled, request["side"])
    else:
        settings = backend_settings(preset, x.dtype)
    with settings, torch.no_grad():
        if tiled is not None:
            answer |= _measured(request, card, before, lambda: run(x))
        else:
            way = opened(request["way"], model, request["side"], request["preset"], None)
            with way as theirs:
                answer |= _measured(request, card, before, lambda: theirs(x))
    if tiled is not None:
        answer["prepared"] = _prepared(tiled)
        answer["tensors"] = max(0, answer["tensors"] - answer["prepared"])
    return answer


def _measured(request: Request, card: Any, before: int, run: Callable[[], Any]) -> dict[str, Any]:
    last: list[Any] = [None]

    def call() -> None:
        last[0] = None  # or two results would be alive at once
        last[0] = run()

    card.restart()
    seconds = [seconds_of(card, call)]
    retries = card.retries()
    seconds += [seconds_of(card, call) for _ in range(request["runs"])]
    found = {
        "first": seconds[0],
        "seconds": sorted(seconds[1:])[len(seconds[1:]) // 2] if seconds[1:] else None,
        "tensors": card.most_tensors() - before,
        "reserved": card.most_reserved(),
        "retries": (card.retries() - retries) / max(1, request["runs"]),
    }
    if request["save"] is not None:
        kept(tensor_of(last[0]), request["save"])
    return found


def _said(plan: Plan) -> dict[str, Any]:
    return {
        "said": plan.peak_bytes,
        "said_host": plan.host_bytes,
        "said_disk": plan.disk_bytes,
        "moved": plan.moved_bytes,
        "work": plan.work,
        "strips": plan.strips,
        "strip_rows": plan.strip_rows,
        "segments": len(plan.segments),
        "estimate": plan.seconds,
        "least": plan.least_budget,
    }


def _prepared(tiled: TiledVAE) -> int:
    """Bytes of weights in another layout, and of what was computed from them: no activations."""
    own = {p.data_ptr() for p in tiled.parameters()}
    held = {}
    for session in tiled._sessions.values():
        held |= {t.data_ptr(): t.nbytes for _, t in session._weights._done.values()}
        for ready in session._runs._ready.values():
            held |= {t.data_ptr(): t.nbytes for t in ready.runner._constants.values()}
    return sum(size for place, size in held.items() if place not in own)
