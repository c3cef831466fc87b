"""What another process fails with is tried again where it would be in this one."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from tvae.pipeline.errors import InputError, OutOfMemory, OutputError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.jobs.devices.messages import Raised
from tvae.pipeline.jobs.passing import may_pass
from tvae.pipeline.stores import StoreError


def caused(error: Exception, cause: BaseException | None) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (caused(OutputError("full"), OSError(errno.ENOSPC, "full")), True),
        (caused(OutputError("closed"), PermissionError(errno.EACCES, "closed")), False),
        (caused(OutputError("busy"), StoreError("busy")), True),
        (caused(OutputError("denied"), StoreError("denied", denied=True)), False),
        (caused(InputError("damaged"), ValueError()), False),
        (MemoryError(), True),
        (OutOfMemory("no room"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            True,
        ),
        (RuntimeError("can't start new thread"), True),
        (ValueError(), False),
    ],
)
def test_the_same_as_in_this_process(error: Exception, passes: bool) -> None:
    assert may_pass(error) == passes
    told = pickle.loads(pickle.dumps(Raised.of(error))).error()
    assert may_pass(told) == passes
    assert may_pass(caused(OutputError("of an item"), told)) == passes


def test_an_error_of_writing(tmp_path: Path) -> None:
    told = Raised.of(caused(write_error(tmp_path, OSError(errno.EIO, "broken")), OSError(errno.EIO, "broken"))).error()
    assert may_pass(told)
    assert "in the process of a device" in str(told.__cause__)
