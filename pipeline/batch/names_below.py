"""What a file in a folder names, as names that do not depend on the current folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from tvae.pipeline.stores import Store, StoreError, is_url, parse_url

__all__ = ["is_below", "is_there", "names_below"]


def is_below(name: str, folder: str) -> bool:
    """Is a path, or a URL, that of a folder or below it?"""
    if is_url(name) or is_url(folder):
        return f"{name.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
    path = PurePath(name)
    return PurePath(folder) in (path, *path.parents)


def names_below(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """The names of inputs, below ``folder`` where they are not whole. In a pattern the folder's own name stands for
    itself. Of very many in a few folders, ``Path`` is asked for the folders alone."""
    whole: dict[str, str] = {}
    for name in names:
        inside, last = os.path.split(name)
        if last in ("", os.curdir) or name.startswith("~") or glob.has_magic(name) or is_url(name):
            yield _below(folder, name)
            continue
        if inside not in whole:
            whole[inside] = _below(folder, os.path.join(inside, "x"))[:-1]
        yield whole[inside] + last


def _below(folder: Path, name: str) -> str:
    if is_url(name):
        return name
    whole = folder / Path(os.path.expanduser(name))
    if not glob.has_magic(name) or not glob.has_magic(str(folder)) or os.path.lexists(whole):
        return str(whole)
    return str(Path(glob.escape(str(folder))) / Path(os.path.expanduser(name)))


def is_there(name: str) -> bool:
    """Is there a file or folder of this name, or at this URL? Yes where its store does not say."""
    if not is_url(name):
        return Path(name).exists()
    place = parse_url(name)
    try:
        return Store(place.kind).look(place.key) is not None
    except StoreError:
        return True  # what is wrong with it is told when it is listed
