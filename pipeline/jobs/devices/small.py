"""Many small pictures on a fast GPU: do several processes share it?

Reading, preparing and writing a picture costs milliseconds of Python, and the threads of a process share one lock. An
H100 takes 2 ms for a picture of 512x512 (SDXL's shape). A process on 16 cores read and wrote 240 to 280 a second, two
418, and three as many. Of 1024x1024 one process does all that the GPU can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.devices.started import start_more
from tvae.pipeline.jobs.job import Job, fills_shards
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.media.image_read import image_size
from tvae.pipeline.settings.cores import usable_cores
from tvae.pipeline.settings.early_cuda import capability_of

__all__ = ["by_processes"]

MANY = 2000
"""Pictures of each device from which on another process is worth its start, some seconds beside the others' work."""
SMALL_PIXELS = 640 * 640
"""Pictures up to here take a fast GPU less time than the interpreter's lock."""
CORES = 4
"""Of each process: it reads and writes with that many at least."""
LOOKED_AT = 25
"""Pictures whose size is looked at."""
ASKED_FOR = 100
"""Results that are asked for: where most are there already, few pictures are left."""


def by_processes(job: Job, items: Sequence[Item], devices: Sequence[str]) -> list[str]:
    """Devices, each as often as processes are to compute on it. devices: those that share the job; none where this
    process computes. Where nothing is better done by more processes, the result is what was given.

    Imports PyTorch where there are many small pictures. No device is touched: each belongs to what computes on it.
    """
    given, many = [*devices], MANY * max(1, len(devices))
    if not _may(job) or len(items) < many or not _are_small(job, items) or _left(job, items) < many:
        return given
    there = [name for name in given or [job.device or "cuda:0"] if capability_of(name) is not None]
    begun = 1 if given else 0  # of each device
    # they import PyTorch beside this process
    start_more(sum(count - begun for count in _times(job, there, capability_of) if count > 1))
    names = given or _chosen(job.device)
    times = _times(job, names, _capability)
    found = [name for name, count in zip(names, times, strict=True) for _ in range(count)]
    return found if len(found) > len(names) else given


def _times(job: Job, names: Sequence[str], capability: Callable[[str], tuple[int, int] | None]) -> list[int]:
    """How many processes each device is to have."""
    most = usable_cores() // max(1, len(names)) // CORES
    return [max(1, min(_wanted(job.preset, name, capability), most)) for name in names]


def _may(job: Job) -> bool:
    """Memory that is named is one process's; what is claimed or numbered is done one after the
    other; and whoever wants files opened elsewhere does not want them opened here."""
    one = job.vram is not None or job.claim or job.dry_run or job.split == "rows" or fills_shards(job)
    return job.operation in ("encode", "cache") and not one and job.sandbox != "on"


def _are_small(job: Job, items: Sequence[Item]) -> bool:
    """Most of them, as far as a few tell; what is not on this machine is not looked at."""
    step = max(1, len(items) // LOOKED_AT)
    looked_at = [items[number] for number in range(0, len(items), step)]
    if any(item.kinds != {"image"} or item.member is not None for item in looked_at):
        return False
    if job.size is not None:
        return job.size[0] * job.size[1] <= SMALL_PIXELS
    sizes = [pixels for item in looked_at if (pixels := _pixels(item)) is not None]
    return bool(sizes) and median(sizes) <= SMALL_PIXELS


def _left(job: Job, items: Sequence[Item]) -> float:
    """Pictures without a result, as far as some tell."""
    if job.existing == "overwrite":
        return len(items)
    asked_for = items[:: max(1, len(items) // ASKED_FOR)]
    return len(items) * sum(not _is_there(item) for item in asked_for) / len(asked_for)


def _is_there(item: Item) -> bool:
    try:
        return item.output("image").exists()
    except (InputError, OSError):
        return False


def _pixels(item: Item) -> int | None:
    """None for what is told when its turn comes."""
    try:
        size = image_size(item.source)
    except (InputError, OSError):
        return None
    return None if size is None else size[0] * size[1]


def _chosen(device: str | None) -> list[str]:
    """The GPU that this process would compute on, with its number; none where it is no GPU, or there is none."""
    import torch

    if device is None or device == "cuda":
        device = "cuda:0"
    number = device.removeprefix("cuda:")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [device] if number != device and number.isdecimal() and int(number) < there else []


def _capability(name: str) -> tuple[int, int]:
    import torch

    return torch.cuda.get_device_capability(name)


def _wanted(preset: str, device: str, capability: Callable[[str], tuple[int, int] | None]) -> int:
    """Processes, by the preset."""
    from tvae import presets

    if not device.startswith("cuda"):
        return 1
    try:
        if preset != "auto":
            return presets.load(preset).processes
        return presets.choose("cuda", capability(device)).processes
    except (ValueError, RuntimeError):  # told by whoever computes
        return 1
