"""What Triton needs of a machine, seen at a glance: loading it and starting it takes a second or more."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch

__all__ = ["unmet"]

_OLDEST = (8, 0)
"""The compute capability from which Triton compiles."""


def unmet() -> str | None:
    """Why Triton cannot run here, or None. A machine that has all of this may fail to start it all the same."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if torch.version.hip is None and torch.cuda.get_device_capability() < _OLDEST:
        return f"the GPU's compute capability is below {_OLDEST[0]}.{_OLDEST[1]}"
    return None if sys.platform == "win32" else _no_launcher()  # which comes with its compiler there


def _no_launcher() -> str | None:
    """Why what launches a kernel could not be compiled: Triton writes a Python module in C for it."""
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    if not any(shutil.which(name) for name in compilers):
        return f"Triton needs a C compiler, and there is no {' or '.join(compilers)}"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # where Triton looks on Debian
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    return None if header.is_file() else f"Triton needs Python's headers, and there is no {header}"
