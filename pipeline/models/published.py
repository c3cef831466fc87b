"""Names of public VAEs, by the sha256 of their published files.

The families list the files. Digests are those that Hugging Face gives for each file; of every one here, two public
projects or more have the same. A file that was written again (by another program, in another type) has another digest
and no name here, whatever its values are.
"""

from __future__ import annotations

from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.layout import Kin

__all__ = ["published_kin", "published_name"]


def published_name(sha256: str) -> str | None:
    """What the VAE of this file is called; None of a file that no family lists. sha256: of all its bytes, in hex."""
    return _NAMES.get(sha256)


def published_kin(sha256: str) -> Kin | None:
    """The models that the VAE of this file is of, where its family tells them from others of its layers."""
    return _KIN.get(sha256)


_KIN: dict[str, Kin] = {digest: kin for family in FAMILIES.values() for kin in family.kin for digest in kin.files}
_NAMES: dict[str, str] = {
    digest: name
    for family in FAMILIES.values()
    for files in (family.files, *(kin.files for kin in family.kin))
    for digest, name in files.items()
}
