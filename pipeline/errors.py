"""Everything tvae raises on purpose:

    TvaeError
    ├── UsageError      what was asked for cannot be done: flags, names, an unloadable VAE (exit code 2)
    ├── InputError      one input is bad: a damaged file, non-finite values, latents of another VAE (exit code 3)
    ├── OutputError     one result cannot be written: a full disk, a folder that is gone or closed (exit code 3)
    ├── PlanError       no plan fits: the budget is too small, a shape the model cannot represent (exit code 2)
    └── UnsupportedOp   the captured graph holds an operation the engine has no rule for (exit code 2)

Exit codes are given by the command line alone; the library only raises. The message of every error is one line
that says what is wrong, where, and what to do.
"""

from __future__ import annotations

__all__ = ["InputError", "OutputError", "PlanError", "TvaeError", "UnsupportedOp", "UsageError"]


class TvaeError(Exception):
    """Root of the tree; catching it catches everything tvae raises on purpose."""


class UsageError(TvaeError):
    """The request itself is wrong, whatever the data."""


class InputError(TvaeError):
    """One input is unusable; other inputs of the same run are not affected."""


class OutputError(TvaeError):
    """One result cannot be written; nothing of it stays, and other results of the same run are not affected."""


class PlanError(TvaeError):
    """No execution plan exists for this model, shape and budget.

    ``enough``: the smallest budget that would work, in bytes; None if no budget would, or it is not known.
    """

    def __init__(self, message: str, enough: int | None = None) -> None:
        self.enough = enough
        super().__init__(message)


class UnsupportedOp(TvaeError):
    """The engine has no rule for an operation, or cannot capture it.

    ``op``: the operation. ``module``: path of the module that calls it. ``why``: the reason, or empty. The argument
    ``whole`` says whether ``allow_whole`` would run it.
    """

    def __init__(self, op: str, module: str, why: str = "", *, whole: bool = True) -> None:
        self.op, self.module, self.why = op, module, why
        what = "no rule for" if whole else "cannot capture"
        remedy = "; pass allow_whole=True (--allow-whole) to run it on the whole value, exact but in more memory"
        detail = f" ({why})" if why else ""
        super().__init__(f"{what} operation '{op}' in module '{module or '<root>'}'{detail}{remedy if whole else ''}")
