"""Files of this machine that stand for results in a store: what is asked of those, before any work, is in their first
and last bytes. The rest is left out, and takes no room where the disk knows holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvae.pipeline import latents, media
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.jobs.remote.fetching import fetch_one, give_time
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.stores import RemoteFile, StoreError

__all__ = ["stand_in"]

_HEAD = 64 << 10
"""Bytes. The header of an image's latents has 2 or 3 KiB."""
_LONGEST_HEADER = 16 << 20
"""Of latents: the times of a long clip's part."""


def stand_in(files: Sequence[RemoteFile], target: Path) -> None:
    """``files``: the one that ``target`` stands for, or those of its folder. Raises InputError where they cannot be
    read, OutputError where nothing can be written here."""
    try:
        if target.suffix == latents.VIDEO_SUFFIX:
            target.mkdir()
            for file in (one for one in files if not one.is_folder):
                _stand_in(file, target / file.name, whole=file.name == INDEX_NAME)
        elif target.suffix == latents.IMAGE_SUFFIX:
            _stand_in(files[0], target)
        else:
            _stand_in(files[0], target)
            if media.read_fingerprint(target) is None:  # which some formats have at their end
                _stand_in(files[0], target, whole=True)
    except StoreError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise write_error(target, error) from error


def _stand_in(file: RemoteFile, target: Path, *, whole: bool = False) -> None:
    target.unlink(missing_ok=True)
    if whole:
        fetch_one(file, target)
        return
    head = file.store.head(file, _HEAD) if target.parent.suffix != latents.VIDEO_SUFFIX else b""
    if target.suffix == latents.IMAGE_SUFFIX and head:
        length = 8 + int.from_bytes(head[:8], "little")
        if len(head) < length <= min(file.size, _LONGEST_HEADER):
            head = file.store.head(file, length)
    with target.open("xb") as made:
        made.write(head)
        made.truncate(file.size)
    give_time(file, target)
