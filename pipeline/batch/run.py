"""Does the steps of a job file one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace as replaced

from tvae.pipeline.batch.check import VERIFY, CheckStep, run_check
from tvae.pipeline.batch.job_file import Step
from tvae.pipeline.batch.options import Options
from tvae.pipeline.batch.outputs_of_steps import OutputsOfSteps, check_outputs
from tvae.pipeline.batch.results import StepResult, TooManyFailures
from tvae.pipeline.batch.step_run import StepRun
from tvae.pipeline.batch.to_come import without_what_is_to_come
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event, ItemFailed
from tvae.pipeline.jobs.events import ItemVerified
from tvae.pipeline.jobs.vaes import OpenVaes

__all__ = ["Options", "StepResult", "TooManyFailures", "check_shared", "run_batch"]


def run_batch(
    steps: Sequence[Step | CheckStep],
    options: Options,
    on_event: Callable[[Event], None],
    sleep: Callable[[float], None] = time.sleep,
    results: list[StepResult] | None = None,
) -> list[StepResult]:
    """Does all steps in turn; ``on_event`` is told what ``run_job`` tells, step by step, group by group.

    A failure costs its item alone, unless ``most_failures`` are reached: then the results so far come back, the last
    step's among them. What is wrong with a step as a whole raises, as in ``run_job``. results: is filled meanwhile, for
    whoever wants to know after an exception how far it came.
    """
    check_shared(steps, options)
    results = [] if results is None else results
    opened, written = OpenVaes(), OutputsOfSteps(_computing(steps))
    check_outputs(_computing(steps), opened)
    made: set[str] = set()
    for number, step in enumerate(steps):
        if isinstance(step, CheckStep):
            home = step.home([one.output for one in _computing(steps[:number])])
            results.append(StepResult(VERIFY, home, waits=options.dry_run))
            if not options.dry_run and not _checked(step, options, on_event, results):
                break
            continue
        result = StepResult(step.job.operation, step.output)
        results.append(result)
        here = without_what_is_to_come(step, made) if options.dry_run else step
        made.add(step.output)
        result.waits = here is not step
        if here is None:
            continue
        begin = time.monotonic()
        try:
            StepRun(here, options, on_event, sleep, results, opened, written).run()
        except TooManyFailures:
            break
        finally:
            result.seconds = time.monotonic() - begin
    return results


def _computing(steps: Sequence[Step | CheckStep]) -> list[Step]:
    return [step for step in steps if isinstance(step, Step)]


def check_shared(steps: Sequence[Step | CheckStep], options: Options) -> None:
    """Raises UsageError, before the first step is begun, for what cannot be shared with other processes."""
    for step in _computing(steps):
        for override in ((), *((n,) for n in range(len(step.overrides)))):
            job = step.job_with(override)
            if options.claim:
                replaced(job, claim=True)
            if options.elsewhere is not None and job.devices is not None:
                raise UsageError("devices are of one machine; leave them out of the job, workers have one each")


def _checked(
    step: CheckStep, options: Options, on_event: Callable[[Event], None], results: Sequence[StepResult]
) -> bool:
    """Does the last of the results; is there to be more?"""
    result, most = results[-1], options.most_failures

    def heard(event: Event) -> None:
        match event:
            case ItemVerified():
                result.done += 1
                result.stale += event.state == "stale"
            case ItemFailed():
                result.count_failure(event)
        on_event(event)
        if isinstance(event, ItemFailed) and most is not None and sum(r.failed for r in results) >= most:
            raise TooManyFailures

    begin = time.monotonic()
    try:
        run_check(step, lambda path: options.shard is None or options.shard.takes(path), heard)
    except TooManyFailures:
        return False
    finally:
        result.seconds = time.monotonic() - begin
    return True
