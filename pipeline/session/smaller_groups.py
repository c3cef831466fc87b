"""Groups of some of the processes of a group, which all of those make together.

Where only its members make a group, PyTorch names it by them and by how many groups the process knows. A member with
another number then waits for the others in vain, and numbers do differ: each process is in groups of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from tvae.pipeline.errors import UsageError

__all__ = ["check_member", "known_groups", "smaller_group", "time_out"]


def check_member(group: object) -> None:
    """Raises UsageError for a group that this process is no member of, or that was destroyed."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("this process is no member of the group; only members make the call")
    if group not in dist.distributed_c10d._world.pg_map:
        raise UsageError("the process group is not there any more; pass one that was not destroyed")


def known_groups() -> int:
    """To the process."""
    return len(dist.distributed_c10d._world.pg_names)


def time_out(group: dist.ProcessGroup) -> timedelta:
    """After which the group gives up waiting."""
    for kind in ("cpu", "cuda"):
        with suppress(RuntimeError):  # it has no way between such devices
            options: Any = getattr(group._get_backend(torch.device(kind)), "options", None)
            found = getattr(options, "_timeout", None)
            if isinstance(found, timedelta):
                return found
    return default_pg_timeout


def smaller_group(group: dist.ProcessGroup, members: Sequence[int], number: int) -> dist.ProcessGroup | None:
    """Of these members of a group, by their ranks in it, with its time-out; None on others. All of its processes call.

    number: the largest of ``known_groups`` on all of them, and larger than the one that was last given.
    """
    ranks, there = [dist.get_global_rank(group, rank) for rank in members], dist.get_rank(group) in members
    if dist.get_world_size(group) == dist.get_world_size():  # all that there are: they count alike
        found: dist.ProcessGroup | None = dist.new_group(ranks, timeout=time_out(group))
        return found if there else None
    if not there:
        return None
    mine = [dist.get_rank()]
    beside = [
        dist.new_group(mine, backend="gloo", use_local_synchronization=True) for _ in range(known_groups(), number)
    ]
    try:
        return dist.new_group(ranks, timeout=time_out(group), use_local_synchronization=True)
    finally:
        for one in beside:
            dist.destroy_process_group(one)
