"""Names of outputs by a template, such as ``{folder}/{stem}``."""

from __future__ import annotations

import difflib
import hashlib
import re
from pathlib import Path, PurePosixPath

from tvae.pipeline.errors import UsageError

__all__ = ["FIELDS", "check_naming", "named"]

FIELDS = ("folder", "name", "stem", "hash")
"""The source's folder, from the folder or pattern on that it was found by; its name; that without its suffix; and 16
digits of a hash of both folder and name."""
_FIELD = re.compile(r"\{([^{}]*)\}")


def check_naming(template: str) -> None:
    """Raises UsageError for one that could lead out of the output folder, or gives all outputs one name."""
    for word in _FIELD.findall(template):
        if word not in FIELDS:
            close = difflib.get_close_matches(word, FIELDS, n=1)
            hint = f"; did you mean {{{close[0]}}}?" if close else ""
            raise UsageError(f"naming has no {{{word}}}{hint} There are {', '.join(FIELDS)}")
    fixed = _FIELD.sub("x", template)
    if "{" in fixed or "}" in fixed:
        raise UsageError(f"naming '{template}' has a brace without its other one")
    if not {"name", "stem", "hash"} & {*_FIELD.findall(template)}:
        raise UsageError(f"naming '{template}' gives all outputs one name; use {{name}}, {{stem}} or {{hash}}")
    parts = PurePosixPath(fixed)
    if parts.is_absolute() or ".." in parts.parts or "\\" in fixed or ":" in fixed or "\0" in fixed:
        raise UsageError(f"naming '{template}' leads out of the output folder")
    if fixed.endswith("/"):
        raise UsageError(f"naming '{template}' ends in a folder; add {{name}}, {{stem}} or {{hash}}")


def named(template: str, below: Path, name: str) -> PurePosixPath:
    """Place of an output in the output folder, without the suffix that its kind adds. below, name: of the source."""
    folder = below.as_posix()
    place = f"{folder}/{name}".encode(errors="surrogateescape")
    values = {"folder": folder, "name": name, "stem": Path(name).stem, "hash": hashlib.sha256(place).hexdigest()[:16]}
    return PurePosixPath(_FIELD.sub(lambda found: values[found[1]], template))
