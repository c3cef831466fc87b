"""Everything tvae raises on purpose:

    TvaeError
    ├── UsageError      what was asked for cannot be done: flags, names, an unloadable VAE (exit code 2)
    ├── InputError      one input is bad: a damaged file, non-finite values, latents of another VAE (exit code 3)
    │   └── OutOfMemory one input needs more memory than there is
    ├── OutputError     one result cannot be written: a full disk, a folder that is gone or closed (exit code 3)
    ├── PlanError       no plan fits: the budget is too small, a shape the model cannot represent (exit code 2)
    ├── RankError       another process that shares a run failed, died, or hangs (exit code 1)
    └── UnsupportedOp   the captured graph holds an operation the engine has no rule for (exit code 2)

Exit codes are given by the command line alone; the library only raises. The message of every error is one line
that says what is wrong, where, and what to do.
"""

from __future__ import annotations

__all__ = [
    "InputError",
    "OutOfMemory",
    "OutputError",
    "PlanError",
    "RankError",
    "TvaeError",
    "UnsupportedOp",
    "UsageError",
    "in_module",
]


class TvaeError(Exception):
    """Root of the tree; catching it catches everything tvae raises on purpose."""


class UsageError(TvaeError):
    """The request itself is wrong, whatever the data."""


class InputError(TvaeError):
    """One input is unusable; other inputs of the same run are not affected."""


class OutOfMemory(InputError):
    """Of the device, or of the computer, for this input now: a smaller one, or the same one later, may do."""


class OutputError(TvaeError):
    """One result cannot be written; other results of the same run are not affected.

    Nothing has its name. Complete parts of a clip stay, for the next run to continue.
    """


class PlanError(TvaeError):
    """No execution plan exists for this model, shape and budget.

    ``enough``: the smallest budget that would work, in bytes; None if no budget would, or it is not known.
    """

    def __init__(self, message: str, enough: int | None = None) -> None:
        self.enough = enough
        super().__init__(message)


class RankError(TvaeError):
    """Another process that shares a run died, or does not answer in time: this one cannot go on either. Or it failed in
    a call, which the message names with its error: the next call may succeed."""


class UnsupportedOp(TvaeError):
    """The engine has no rule for an operation, or cannot capture it.

    ``op``: the operation. ``module``: path of the submodule that calls it, empty for the model itself. ``why``: the
    reason; empty where there is no rule at all. ``whole``: would ``allow_whole`` run it? ``may_pass``: is it of this
    moment (no memory, a time-out), so that the same call may succeed later?
    """

    def __init__(self, op: str, module: str, why: str = "", *, whole: bool = True, may_pass: bool = False) -> None:
        self.op, self.module, self.why, self.may_pass = op, module, why, may_pass
        if op == "torch.export":  # of no single operation: ``module`` is the model's class or method, where it is known
            where = f"'{module}'" if module else "the model"
        else:
            where = f"operation '{op}' {in_module(module)}"
        if whole:
            what = f"cannot be computed in strips: {why or 'tvae has no rule for it'}"
            remedy = "pass allow_whole=True (--allow-whole) to run it on the whole value, exact but in more memory"
        else:
            what = f"cannot be captured: {why}"
            remedy = "change this part of the model, or run the model without tvae"
        super().__init__(f"{where} {what}; {remedy}")


def in_module(path: str) -> str:
    """Where in a model, for messages: the path of a submodule as PyTorch names it, empty for the model itself."""
    return f"in module '{path}'" if path else "in the model itself"
