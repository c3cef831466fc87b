"""``--devices``: how many, or which. What is written wrong shows at once, which of them there are needs PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from tvae.pipeline.errors import UsageError

__all__ = ["can_share_rows", "check_alike", "check_devices", "present_devices"]


def check_devices(text: str) -> int | list[str]:
    """How many, or their names as written. Raises UsageError for what names no device, or one twice."""
    names = [name.strip() for name in text.split(",")]
    if len(names) == 1 and names[0].isascii() and names[0].isdigit():
        if int(names[0]) == 0:
            raise UsageError("--devices 0 leaves nothing to compute on; name 1 or more")
        return int(names[0])
    if not all(names):
        raise UsageError(f"--devices '{text}' is neither a number nor a list of devices, such as cuda:0,cuda:2")
    _check_once(names)
    return names


def present_devices(text: str) -> list[str]:
    """Names of the devices, each with its number. Raises UsageError for more than there are, and for others.

    Imports PyTorch. No device is touched: each belongs to the process that computes on it.
    """
    wanted = check_devices(text)
    if isinstance(wanted, int):
        kind, count = next((kind, count) for kind, count in _there().items() if count)
        if wanted > count:
            raise UsageError(f"--devices {wanted} are more devices than there are here: {_listed(kind, count)}")
        return [_name(kind, number) for number in range(wanted)]
    names = [_checked(name) for name in wanted]
    _check_once(names)
    return names


def can_share_rows(names: Sequence[str]) -> bool:
    """Have they a way to one another that PyTorch knows? Then they are all of one kind."""
    return _kinds(names) in ({"cuda"}, {"cpu"})


def check_alike(names: Sequence[str]) -> None:
    """Raises UsageError for devices that cannot share rows."""
    if can_share_rows(names):
        return
    kinds = sorted(_kinds(names))
    which = f"different kinds ({', '.join(kinds)})" if len(kinds) > 1 else f"kind {kinds[0]}"
    raise UsageError(f"devices of {which} cannot share rows; name devices of one kind, cuda or cpu")


def _kinds(names: Sequence[str]) -> set[str]:
    return {name.partition(":")[0] for name in names}


def _checked(name: str) -> str:
    import torch

    there = _there()
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--devices: '{name}' is no device; write them like cuda:0,cuda:2") from None
    kind, number = device.type, device.index or 0
    if kind not in there:
        raise UsageError(f"--devices: '{name}' is a device of no kind that tvae uses: {', '.join(there)}")
    if number >= there[kind]:
        raise UsageError(f"--devices: there is no '{name}' here, only {_all_listed(there)}")
    return _name(kind, number)


def _there() -> dict[str, int]:
    """How many devices there are of each kind, the kind that is used first, first."""
    import torch

    xpu, mps = (getattr(torch, kind, None) for kind in ("xpu", "mps"))
    return {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "xpu": xpu.device_count() if xpu is not None and xpu.is_available() else 0,
        "mps": int(mps is not None and mps.is_available()),
        "cpu": 1,
    }


def _name(kind: str, number: int) -> str:
    return f"{kind}:{number}" if kind in ("cuda", "xpu") else kind


def _listed(kind: str, count: int) -> str:
    return ", ".join(_name(kind, number) for number in range(count))


def _all_listed(there: dict[str, int]) -> str:
    return ", ".join(_listed(kind, count) for kind, count in there.items() if count)


def _check_once(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"--devices names {twice[0]} twice; name each device once")
