"""Where the time of a first call goes: seconds within a few functions, and the functions that take most themselves."""

from __future__ import annotations

import cProfile
import pstats
import time
from typing import Any

from measuring.card import card_of
from measuring.models import clip_of, module_of

__all__ = ["profile"]

PARTS = {
    "capture": ("engine/capture.py", "capture"),
    "passes": ("passes/__init__.py", "optimise"),
    "lowering": ("engine/lower.py", "lower"),
    "planning": ("pipeline/planning.py", "planned"),
    "weights": ("pipeline/weights.py", "__call__"),
    "constants": ("engine/constants.py", "from_weights"),
    "running": ("engine/execute.py", "execute"),
    "Triton builds": ("triton/compiler/compiler.py", "compile"),
    "NVRTC builds": ("cuda/program.py", "compiled"),
    "convolutions": ("", "convolution"),
}
"""Name -> file and function whose seconds, with all that they call, are told."""


def profile(request: dict[str, Any]) -> dict[str, Any]:
    """config, tiny, side, size, dtype, device, preset: as of ``whole``. Profiling itself makes Python slower."""
    import torch

    from tvae.pipeline import TiledVAE

    card = card_of(request["device"])
    model = module_of(request["config"], request["tiny"], request["dtype"], str(card.device))
    x = clip_of(request["config"], request["tiny"], request["side"], tuple(request["size"]))
    x = x.to(card.device, getattr(torch, request["dtype"]))
    run = getattr(TiledVAE(model, request["preset"]), request["side"])
    card.wait()
    watched = cProfile.Profile()
    start = time.perf_counter()
    watched.enable()
    run(x)
    card.wait()
    watched.disable()
    seconds = time.perf_counter() - start
    stats: dict[Any, Any] = pstats.Stats(watched).stats  # type: ignore[attr-defined]
    parts: dict[str, float] = {}
    for (file, _, name), (_, _, _own, within, _) in stats.items():
        for part, (where, function) in PARTS.items():
            named = name == function if where else function in name
            if named and (file.replace("\\", "/").endswith(where) if where else file == "~"):
                parts[part] = parts.get(part, 0.0) + within
    own = sorted(((v[2], v[0], f"{k[0].rsplit('/', 1)[-1]}:{k[2]}") for k, v in stats.items()), reverse=True)[:12]
    return {"first": seconds, "parts": parts, "own": [f"{t:.2f} s {count}x {name}" for t, count, name in own]}
