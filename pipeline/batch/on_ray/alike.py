"""Why a worker is not used: it would compute something else, or elsewhere. Each reason is a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvae.pipeline.batch.on_ray.identity import differences, identity
from tvae.pipeline.jobs.devices.messages import Ready

__all__ = ["other_model", "unlike"]


def unlike(found: Mapping[str, Any], place: tuple[str, str]) -> str | None:
    """Of where it is, as ``Relay.place`` found it for this place; None: it can be used."""
    if "absent" in found:
        return f"there is no such tvae ({found['absent']}); install the same"
    if other := differences(found["identity"], identity()):
        return f"it has other versions: {other}; install the same"
    if not found["sees"]:
        folders = " and ".join(dict.fromkeys((place[0], str(Path(place[1]).parent))))
        return f"it does not see {folders} as they are here; all nodes need the files"
    return None


def other_model(ready: Ready, first: Ready, *, gpu: bool) -> str | None:
    """Of the VAE that it has opened, and how; None: it is that of the first worker. gpu: it has one for itself."""
    if gpu and ready.device == "cpu":
        return "PyTorch finds no GPU there; install a build of it for that GPU"
    if ready.weights_sha256 != first.weights_sha256:
        theirs, ours = (str(one.weights_sha256)[:12] for one in (ready, first))
        return f"its VAE is another one: weights {theirs}, the first worker's {ours}"
    if ready.dtype != first.dtype:
        return f"it computes in {ready.dtype}, the first worker in {first.dtype}; name a dtype in the job"
    return None
