"""Names of files are UTF-8 in the command, whatever the locale.

Latents, manifests and caches say names, and job files and lists have them in UTF-8. In another encoding the same file
would have another name: what is done would be made again, and a name out of a file could not be opened.
"""

from __future__ import annotations

import os
import sys

__all__ = ["names_in_utf8"]


def names_in_utf8() -> None:
    """Starts the program again, in Python's UTF-8 mode, where names are in another encoding, as they are in a Latin-1
    locale or with ``PYTHONUTF8=0``. Bytes that are no UTF-8 stay what they are. On Windows names are Unicode anyway."""
    if sys.getfilesystemencoding() == "utf-8" or os.name == "nt" or not sys.executable:
        return
    if os.environ.get("PYTHONUTF8") != "1":  # else it was tried
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONUTF8": "1"})  # the program's own processes, too
