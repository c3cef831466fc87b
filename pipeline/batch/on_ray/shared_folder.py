"""The files of a job, which all nodes are to see under the same names."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.names import owned_name
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.stores import RemotePath

__all__ = ["seen_by_all"]


@contextmanager
def seen_by_all(items: Sequence[Item], uploads: Uploads | None) -> Iterator[tuple[str, str]]:
    """The folder that names are from, and a file that each node is to see: there where outputs go, or, where those go
    to a store, one of the inputs; empty where these are in a store, too."""
    if uploads is not None:
        source = next((item.source for item in items if not isinstance(item.source, RemotePath)), None)
        yield str(Path.cwd()), "" if source is None else str(source.absolute())
        return
    folder = next((item.folder for item in items if item.problem is None), Path())
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    proof = folder.absolute() / owned_name(secrets.token_hex(6))
    try:
        proof.touch()
    except OSError as error:
        raise write_error(proof, error) from error
    try:
        yield str(Path.cwd()), str(proof)
    finally:
        with suppress(OSError):
            proof.unlink()
