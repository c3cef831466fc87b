"""A quick check whether a machine has what Triton needs; to load and start it takes a second or more."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch

__all__ = ["OLDEST", "all_there"]

OLDEST = (8, 0)
"""The compute capability from which Triton compiles."""


def all_there() -> bool:
    """Is everything found? What is found may still fail to start, and what is missing may be cached."""
    if find_spec("triton") is None or not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_capability() < OLDEST:
        return False
    return sys.platform == "win32" or _compiles()  # it comes with its compiler there


def _compiles() -> bool:
    """Can what launches a kernel be compiled? Triton writes a Python module in C for it."""
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # where Triton looks on Debian
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    return header.is_file() and any(shutil.which(name) for name in compilers)
