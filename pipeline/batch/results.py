"""What became of a step's items, counted as their events come."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvae.pipeline.jobs.events import ItemFailed

__all__ = ["StepResult", "TooManyFailures"]


@dataclass
class StepResult:
    """What became of a step's items. failures: source and reason of each that failed in the end."""

    operation: str
    output: str
    done: int = 0
    skipped: int = 0
    failed: int = 0
    planned: int = 0
    retried: int = 0
    stale: int = 0
    """Of those that a step that verifies found whole."""
    waits: bool = False
    """In a dry run: its inputs are what an earlier step is to make, or it verifies."""
    seconds: float = 0.0
    read_bytes: int = 0
    """Of the sources of all that is done or, in a dry run, planned."""
    written_bytes: int | None = None
    """That a dry run expects, by the outputs that are there; None: nothing is known, or it is no dry run."""
    expected_seconds: float | None = None
    """The same of the time, by the last run's rate."""
    failures: list[dict[str, str]] = field(default_factory=list)

    def count_failure(self, event: ItemFailed) -> None:
        self.failed += 1
        self.failures.append({"source": str(event.input), "error": event.error})


class TooManyFailures(Exception):
    """As many items have failed as were allowed to; what is complete stays."""
