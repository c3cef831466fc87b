"""The pixels of a decoded picture, copied from Pillow's own memory, while other threads run Python.

``np.asarray(picture)`` goes through bytes that Pillow makes with the interpreter's lock held: half a millisecond of a
photo of 512x512, in which a run's other threads stand still. Pillow (from 11.2) tells where its pixels lie by the Arrow
C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), and NumPy copies them without the lock.
"""

from __future__ import annotations

import ctypes

import numpy as np
from PIL import Image

__all__ = ["rgb_of"]

_FOUR_BYTES = b"+w:4"
"""Arrow's word for items of four values: Pillow keeps red, green, blue and a byte that means nothing."""


class _Schema(ctypes.Structure):
    """The beginning of ``ArrowSchema``."""

    _fields_ = (("format", ctypes.c_char_p),)


class _Array(ctypes.Structure):
    """The beginning of ``ArrowArray``."""


_Array._fields_ = (
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
)

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def rgb_of(picture: Image.Image) -> np.ndarray | None:
    """uint8 [H, W, 3] of a picture of mode RGB that is decoded; None where Pillow does not give its memory: releases
    before 11.2, other modes, and large pictures, which lie in several blocks."""
    exported = getattr(picture, "__arrow_c_array__", None)
    if picture.mode != "RGB" or exported is None:
        return None
    try:
        schema, array = exported()  # while these live, the memory does
    except (ValueError, MemoryError):
        return None
    width, height = picture.size
    kind = ctypes.cast(_pointer(schema, b"arrow_schema"), ctypes.POINTER(_Schema)).contents
    pixels = ctypes.cast(_pointer(array, b"arrow_array"), ctypes.POINTER(_Array)).contents
    if kind.format != _FOUR_BYTES or (pixels.length, pixels.offset, pixels.n_children) != (width * height, 0, 1):
        return None
    (values,) = pixels.children[:1]
    first = ctypes.cast(values.contents.buffers[1], ctypes.POINTER(ctypes.c_uint8))
    rgb = np.empty((height, width, 3), np.uint8)
    rgb[...] = np.ctypeslib.as_array(first, (height, width, 4))[..., :3]
    return rgb
