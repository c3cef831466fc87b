"""Caches in shards: many samples one after another in a file, as loaders of large data sets read them.

A shard is a head, the bytes of its samples in the order of the inputs, and a tail. So a sample can be taken out of a
shard and put into another one as it is.
"""

from __future__ import annotations

from tvae.pipeline.caches.shards.form import Sample, ShardForm, key_of
from tvae.pipeline.caches.shards.mds import MDS
from tvae.pipeline.caches.shards.tar import WEBDATASET

__all__ = ["FORMS", "Sample", "ShardForm", "key_of"]

FORMS: dict[str, ShardForm] = {form.name: form for form in (WEBDATASET, MDS)}
"""By the name that ``--for`` knows them by."""
