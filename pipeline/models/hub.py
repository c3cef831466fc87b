"""A VAE from the Hugging Face hub: its configuration and safetensors only. The one place that uses the network."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.pickled_tensors import PICKLED
from tvae.pipeline.models.source import CONFIG_NAME, SUBFOLDERS, pick_weights, pickled_error, shards_of

_log = logging.getLogger("tvae")
_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


def is_hub_id(spec: str) -> bool:
    """`organisation/name` or `organisation/name/subfolder`."""
    return bool(_ID.fullmatch(spec)) and not spec.endswith((".safetensors", *PICKLED))


def download(spec: str) -> Path:
    """Local folder of the VAE that a hub id names; files that are there already are not fetched again.

    `UsageError` in one line for anything that goes wrong: no network, no such repository, no rights, no weights.
    Without network the newest downloaded snapshot serves.
    """
    import huggingface_hub

    repository, subfolder = "/".join(spec.split("/")[:2]), "/".join(spec.split("/")[2:])
    try:
        names = huggingface_hub.HfApi().list_repo_files(repository)
    except Exception as error:  # the hub client raises its own, httpx's and OSError's errors alike
        _log.debug("the hub does not answer for %s", repository, exc_info=True)
        return _downloaded(spec, repository, subfolder, error)
    folder = _vae_folder(spec, names, subfolder)
    prefix = f"{folder}/" if folder else ""
    beside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    picked = pick_weights(beside)
    if picked is None:
        if any(name.endswith(PICKLED) and "/" not in name for name in beside):
            raise pickled_error(spec)
        raise UsageError(f"no safetensors weights for a VAE in '{spec}' on the hub")
    wanted = [CONFIG_NAME, picked[0]]
    snapshot = _fetch(spec, repository, [prefix + name for name in wanted])
    if picked[0].endswith(".json"):
        shards = shards_of(snapshot / folder / picked[0])
        snapshot = _fetch(spec, repository, [prefix + name for name in (*wanted, *shards)])
    return snapshot / folder


def _vae_folder(spec: str, names: list[str], subfolder: str) -> str:
    """Folder of the repository that holds the VAE's config, "" for its top."""
    candidates = [subfolder] if subfolder else ["", *SUBFOLDERS]
    for folder in candidates:
        if (f"{folder}/" if folder else "") + CONFIG_NAME in names:
            return folder
    raise UsageError(f"no VAE in '{spec}' on the hub: no {CONFIG_NAME} at its top nor in {', '.join(SUBFOLDERS)}/")


def _fetch(spec: str, repository: str, patterns: list[str]) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:  # see `download`
        raise UsageError(f"cannot download VAE '{spec}': {_first_line(error)}") from error


def _downloaded(spec: str, repository: str, subfolder: str, error: Exception) -> Path:
    """The snapshot that an earlier run left in the hub's cache; `UsageError` with the first error if there is none."""
    import huggingface_hub

    try:
        snapshot = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
    except Exception:  # see `download`; not being in the cache says nothing new beside the first error
        raise UsageError(
            f"VAE '{spec}' is not a local folder, and cannot be fetched from the hub: {_first_line(error)}"
        ) from error
    return snapshot / subfolder


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
