"""The devices that share a call, as they are named to ``TiledVAE``."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tvae.pipeline.errors import UsageError

__all__ = ["DeviceName", "devices_of_call"]

DeviceName = str | int | torch.device


def devices_of_call(names: Sequence[DeviceName]) -> tuple[torch.device, ...]:
    """Each with its number. No device is touched.

    Raises UsageError for none, for one that is no device or is not here, for kinds that are unlike or neither ``cuda``
    nor ``cpu``, and for a GPU that is named twice. (``cpu`` may be: to try out what several GPUs would do.)
    """
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise UsageError(f"devices is a list, such as ['cuda:0', 'cuda:1'], not {names!r}")
    if not names:
        raise UsageError("devices=[] leaves nothing to compute on; name one or more")
    found = tuple(_device(name) for name in names)
    kinds = sorted({device.type for device in found})
    if kinds not in (["cpu"], ["cuda"]):
        raise UsageError(
            f"devices of kind {', '.join(kinds)} cannot share a call; name devices of one kind, cuda or cpu"
        )
    for device in found:
        if device.type == "cuda" and found.count(device) > 1:
            raise UsageError(f"devices names {device} twice; name each device once")
    return found


def _device(name: DeviceName) -> torch.device:
    try:
        device = torch.device("cuda", name) if isinstance(name, int) else torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"devices: {name!r} is no device; name them like 'cuda:0'") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = torch.cuda.current_device() if device.index is None and count else device.index or 0
    if number >= count:
        there = f"only {', '.join(f'cuda:{n}' for n in range(count))}" if count else "no GPU"
        raise UsageError(f"devices: there is no cuda:{number} here, {there}")
    return torch.device("cuda", number)
