"""A task in a process of its own: ``python -m measuring.child TASK``, its request on stdin, its answer printed last."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from measuring.clip import clip
from measuring.profile import profile
from measuring.whole import whole

__all__ = ["TASKS"]

TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"whole": whole, "clip": clip, "profile": profile}

if __name__ == "__main__":
    import torch

    torch.set_grad_enabled(False)
    print(json.dumps(TASKS[sys.argv[1]](json.load(sys.stdin))))
