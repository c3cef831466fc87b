"""Names of public VAEs, by the sha256 of their published files.

The families list the files. Digests are those that Hugging Face gives for each file; of every one here, two public
projects or more have the same. A file that was written again (by another program, in another type) has another digest
and no name here, whatever its values are.
"""

from __future__ import annotations

from tvae.pipeline.models.families import FAMILIES

__all__ = ["published_name"]


def published_name(sha256: str) -> str | None:
    """What the VAE of this file is called; None of a file that no family lists. sha256: of all its bytes, in hex."""
    return _NAMES.get(sha256)


_NAMES: dict[str, str] = {
    digest: name
    for family in FAMILIES.values()
    for files in (family.files, *(kin.files for kin in family.kin))
    for digest, name in files.items()
}
