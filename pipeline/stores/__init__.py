"""Files that are not on this machine: object stores and web servers, by their URLs, through fsspec.

::

    place = parse_url("s3://bucket/photos/a.jpg")
    store = Store(place.kind)
    file = store.look(place.key)             # RemoteFile: its size, its time, and what tells its versions apart
    store.fetch(file, Path("a.jpg"))
    store.send(Path("a.jpg.safetensors"), "bucket/latents/a.jpg.safetensors")

A store is one entry of :data:`KINDS`. Nothing here imports fsspec before a store is opened, and nothing asks a network
before it is told to look, list, fetch or send. What goes wrong is a :class:`StoreError` of one line, which holds no
credentials: neither those of the environment nor those that a URL carries.
"""

from __future__ import annotations

from tvae.pipeline.stores.errors import StoreError
from tvae.pipeline.stores.kinds import KINDS, StoreKind
from tvae.pipeline.stores.place import Place, RemotePath, is_url, parse_url, shown_path
from tvae.pipeline.stores.store import RemoteFile, Store

__all__ = [
    "KINDS",
    "Place",
    "RemoteFile",
    "RemotePath",
    "Store",
    "StoreError",
    "StoreKind",
    "is_url",
    "parse_url",
    "shown_path",
]
