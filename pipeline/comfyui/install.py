"""The file in ComfyUI's folder for custom nodes."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import read_bytes

__all__ = ["NAME", "install"]

_MOST = 1 << 20
"""Bytes of a file that may be ours."""

NAME = "tvae_nodes.py"
_OURS = "# written by: tvae comfyui install"
_TEXT = f'''{_OURS}
"""Nodes of tvae. They are in the tvae that is installed in ComfyUI's Python."""

try:
    from tvae.pipeline.comfyui.nodes import comfy_entrypoint
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "tvae":
        raise
    import sys

    raise ImportError(f"tvae is not installed in ComfyUI's Python, {{sys.executable}}; install it there") from error

__all__ = ["comfy_entrypoint"]
'''


def install(folder: Path, *, overwrite: bool = False) -> tuple[Path, bool]:
    """Write the file. folder: ComfyUI's, or its ``custom_nodes``. overwrite: replace another version of our file.

    Returns where it is, and whether it was written: False where it was there. Raises UsageError for another folder, a
    file that is not ours and, without ``overwrite``, one of ours that differs; OutputError where it cannot be written.
    """
    path = _custom_nodes(folder) / NAME
    try:
        there = read_bytes(path, _MOST).decode(errors="replace").replace("\r\n", "\n")
    except FileNotFoundError:
        there = None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {why}; move it away") from error
    if there == _TEXT:
        return path, False
    if there is not None and not there.startswith(_OURS):
        raise UsageError(f"{path} is there and was not written by tvae; move it away")
    if there is not None and not overwrite:
        raise UsageError(f"{path} is of another version of tvae, or was edited; pass --overwrite to replace it")
    try:
        with replacing(path) as temporary:
            temporary.write_text(_TEXT, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    return path, True


def _custom_nodes(folder: Path) -> Path:
    """Where ComfyUI looks, also in a folder that has only what users change (``--base-directory``)."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name ComfyUI's, which has custom_nodes in it")
    home, found = folder, folder / "custom_nodes"
    if not found.is_dir() and folder.resolve().name == "custom_nodes":
        home, found = folder.resolve().parent, folder
    if not found.is_dir() or not any((home / name).exists() for name in ("nodes.py", "models", "user")):
        raise UsageError(f"{folder} is not ComfyUI's folder: that has custom_nodes, and nodes.py or models, in it")
    return found
