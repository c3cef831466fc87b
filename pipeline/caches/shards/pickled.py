"""diffusion-pipe's shards: records of ``torch.save`` one after another in files shard_0.bin and so on.

Read at tdrussell/diffusion-pipe 8f83dbf25d03219df705570ec03e62be04bc402f (``utils/cache``, ``utils/dataset``). Where a
record begins stands in the file metadata.db, with the order of records and the fingerprint of their table
(``caches/tables``). A record holds plain values alone: ``latents``; ``image_spec``, which is None and the image's path;
``mask``, None; and ``caption``, all captions of the image when its latents were made. The trainer takes captions from
its table.
"""

from __future__ import annotations

from io import BytesIO

from tvae.pipeline.caches.shards.form import Sample, ShardForm

__all__ = ["PICKLED"]


def _sample(sample: Sample) -> bytes:
    import torch

    file = BytesIO()
    said = {"image_spec": [None, sample.facts["path"]], "mask": None, "caption": sample.facts["captions"]}
    latents = torch.from_numpy(sample.latents).to(getattr(torch, sample.facts["dtype"]))
    torch.save({"latents": latents, **said}, file)
    return file.getvalue()


PICKLED = ShardForm(
    name="diffusion-pipe",
    file="shard_{}.bin".format,
    limit=1 << 30,
    most=10**10,
    sample=_sample,
    head=lambda sizes, settings: b"",
    tail=lambda size: b"",
    size=lambda samples, payload, settings: payload,
    index_name="metadata.db",
)
