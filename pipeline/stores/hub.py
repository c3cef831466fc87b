"""Repositories of the Hugging Face hub: ``hf://datasets/USER/NAME/PATH``, ``hf://USER/MODEL/PATH``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CREDENTIALS = "HF_TOKEN, or hf auth login"


def opened() -> Any:
    """With the token that huggingface_hub finds."""
    from huggingface_hub import HfFileSystem

    return HfFileSystem(skip_instance_cache=True, use_listings_cache=False)


def version(entry: Mapping[str, Any]) -> str | None:
    """A large file's is the checksum of its content, a small one's that of its blob."""
    large = entry.get("lfs")
    tag = large.get("sha256") if isinstance(large, Mapping) else getattr(large, "sha256", None)
    tag = tag or entry.get("blob_id")
    return None if tag is None else str(tag)


def changed(entry: Mapping[str, Any]) -> Any:
    """A commit's time is another one's for each branch; the version says all."""
    return None


def root(key: str) -> str:
    """USER/NAME, with what kind of repository that is before it."""
    parts = key.split("/")
    return "/".join(parts[: 3 if parts[0] in ("datasets", "spaces", "buckets") else 2])
