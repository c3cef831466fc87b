"""Jobs: what the command line asks for, run item by item with overlapping reading, computing and writing.

::

    job = Job("encode", ("photos", "clip.mp4"), output="latents")
    finished = run_job(job, print)          # RunDone(done=…, skipped=…, failed=…)
"""

from __future__ import annotations

from tvae.pipeline.jobs.events import (
    DeviceLost,
    Event,
    ItemDone,
    ItemFailed,
    ItemPlanned,
    ItemSkipped,
    ItemStarted,
    Notice,
    Progress,
    Retried,
    RunDone,
    RunStarted,
)
from tvae.pipeline.jobs.items import read_list
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.metrics import Quality, QualityMeter
from tvae.pipeline.jobs.run import run_job

__all__ = [
    "DeviceLost",
    "Event",
    "ItemDone",
    "ItemFailed",
    "ItemPlanned",
    "ItemSkipped",
    "ItemStarted",
    "Job",
    "Notice",
    "Progress",
    "Quality",
    "QualityMeter",
    "Retried",
    "RunDone",
    "RunStarted",
    "read_list",
    "run_job",
]
