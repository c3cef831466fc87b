"""What a file may be by its first bytes, for those who only want to know what a run would make of it. Nothing is
decoded, and no library is asked: it takes microseconds."""

from __future__ import annotations

from tvae.pipeline.media.formats import HEIF, MJPEG, Kind

__all__ = ["BOXES", "EBML", "ENOUGH", "GIF", "PNG", "first_kinds"]

ENOUGH = 1 << 16
"""Bytes by which a format is told."""
PNG = b"\x89PNG\r\n\x1a\n"
GIF = (b"GIF87a", b"GIF89a")
EBML = b"\x1a\x45\xdf\xa3"
"""Of Matroska and WebM."""
BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
"""Of MP4, MOV and HEIF: the second four bytes."""
_JPEG = b"\xff\xd8\xff"
_STILLS = (b"BM", b"II*\0", b"MM\0*")
"""BMP and TIFF: however many pictures there are, one is read."""
_CLIPS = (EBML, b"FLV\1", b"OggS", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", b"YUV4MPEG2", b"nut/multimedia")
"""Matroska and WebM, FLV, Ogg, ASF, Y4M and NUT."""
_IMAGE_BRANDS = (*HEIF.brands, b"avif", b"avis", b"msf1")
_EITHER: frozenset[Kind] = frozenset({"image", "video"})


def first_kinds(head: bytes, suffix: str) -> frozenset[Kind] | None:
    """head: a file's first bytes, ``ENOUGH`` of them; suffix: of its name. Both kinds where only a reader can tell, as
    of a GIF, which may hold one picture; None where the bytes say nothing."""
    if head.startswith(PNG):
        return _png(head)
    if head.startswith(_JPEG):
        return _EITHER if suffix.lower() in MJPEG.suffixes else _one("image")
    if head[:4] == b"RIFF" and head[8:12] in (b"WEBP", b"AVI "):
        return _one("image" if head[8:12] == b"WEBP" else "video")
    if head.startswith(_STILLS):
        return _one("image")
    if head.startswith(_CLIPS) or (head[4:8] in BOXES and head[8:12] not in _IMAGE_BRANDS):
        return _one("video")
    return _EITHER if head.startswith(GIF) or head[4:8] == b"ftyp" else None


def _png(head: bytes) -> frozenset[Kind]:
    """PNG, 11.3.6.1: an animation says so (acTL) before its first pixels."""
    at = len(PNG)
    while at + 8 <= len(head):
        kind = head[at + 4 : at + 8]
        if kind in (b"IDAT", b"IEND"):
            return _one("image")
        if kind == b"acTL":
            break
        at += 12 + int.from_bytes(head[at : at + 4])
    return _EITHER


def _one(kind: Kind) -> frozenset[Kind]:
    return frozenset({kind})
