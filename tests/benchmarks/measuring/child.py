"""A task in a process of its own: what it does, and where its answer and its last words go."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers.models.autoencoders  # noqa: F401 - seconds that no task should spend again

from measuring.clip import clip
from measuring.heard import heard
from measuring.profile import profile
from measuring.whole import whole
from tvae.pipeline.bench.first_use import first_seconds

__all__ = ["TASKS", "work"]


def first(request: dict[str, Any]) -> dict[str, Any]:
    """seconds of the first call, see ``first_use``."""
    return {"seconds": first_seconds(**request)}


_Task = Callable[[dict[str, Any]], dict[str, Any]]
TASKS: dict[str, _Task] = {"whole": whole, "clip": clip, "profile": profile, "first": first}


def work(task: str, request: str, env: dict[str, str], folder: str) -> None:
    """Begins as a copy of a process that has imported this and nothing else: no device was touched before."""
    log = os.open(Path(folder) / "log", os.O_WRONLY | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    import torch

    torch.set_grad_enabled(False)
    try:
        with heard() as told:
            answer = TASKS[task](json.loads(request))
        (Path(folder) / "answer").write_text(json.dumps({**answer, "heard": told}), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
