"""Latents from tvae's own files into trainers' caches and back, and from one trainer's cache into another's.

Values are copied: nothing is decoded. What changes is the space, the type, the shape, names and what lies beside the
values. ``given`` is what both sides meet in: latents of one picture or clip, and all that is known of them.
"""

from __future__ import annotations

from tvae.pipeline.jobs.conversion.request import Conversion
from tvae.pipeline.jobs.conversion.run import run_conversion

__all__ = ["Conversion", "run_conversion"]
