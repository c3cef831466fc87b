"""``--split``: do devices share items, or the rows of each?"""

from __future__ import annotations

from collections.abc import Sequence

from tvae.pipeline.jobs.devices.names import can_share_rows, check_alike
from tvae.pipeline.jobs.job import Job

__all__ = ["shares_rows"]


def shares_rows(job: Job, items: int, devices: Sequence[str]) -> bool:
    """Are devices to share each of so many items? Raises UsageError where they are and cannot."""
    if job.split == "rows" and len(devices) > 1:
        check_alike(devices)
        return True
    wanted = job.split == "auto" and job.operation != "cache" and 0 < items < len(devices)
    return wanted and can_share_rows(devices)
