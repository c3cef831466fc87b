"""What a job does with its items, by its operation."""

from __future__ import annotations

from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.pictures import Operation

__all__ = ["operation_for"]


def operation_for(context: Context) -> Operation:
    """Imports no other than the one that is asked for."""
    if context.job.operation == "encode":
        from tvae.pipeline.jobs.encode import Encode

        return Encode(context)
    if context.job.operation == "decode":
        from tvae.pipeline.jobs.decode import Decode

        return Decode(context)
    if context.job.operation == "cache":
        from tvae.pipeline.jobs.cache import Cache

        return Cache(context)
    from tvae.pipeline.jobs.roundtrip import Roundtrip

    return Roundtrip(context)
