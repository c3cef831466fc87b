"""Writing one image with Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.atomic import discard, publish, write_error
from tvae.pipeline.media.atomic import reserve
from tvae.pipeline.media.fingerprint import image_tag, stamp
from tvae.pipeline.media.formats import VIDEO_OPTIONS, ImageFormat
from tvae.pipeline.media.spec import Frame, PictureSpec, WriteOptions

__all__ = ["ImageWriter", "image_settings"]


def image_settings(target: ImageFormat, suffix: str, options: WriteOptions) -> dict[str, Any]:
    """What to hand to Pillow. Raises UsageError for options that are a video's, or that the format does not have."""
    for name in VIDEO_OPTIONS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for videos; leave it out for {suffix} images")
    settings = dict(target.defaults)
    for key, text in options.enc.items():
        low, high = target.settings.get(key, (0, -1))
        if not text.isdecimal() or not low <= int(text) <= high:
            known = ", ".join(f"{name}={a}..{b}" for name, (a, b) in target.settings.items()) or "none"
            raise UsageError(f"--enc {key}={text} is not a setting of {suffix} images; there are: {known}")
        settings[key] = int(text)
    return settings


class _Checked(io.BufferedRandom):
    """A file whose every write is Python's. Pillow's own, to a descriptor, do not notice a full disk: of a JPEG half
    was written, and no error raised."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")


class ImageWriter:
    """Holds one frame; commit() writes it."""

    def __init__(self, path: Path, target: ImageFormat, like: PictureSpec, options: WriteOptions) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._shape = (like.height, like.width)
        self._target = target
        self._settings = image_settings(target, path.suffix.lower(), options)
        self._fingerprint = options.fingerprint
        if options.fingerprint is not None:
            self._settings |= image_tag(target, options.fingerprint)
        self._image: Image.Image | None = None
        self._temporary = reserve(path)

    def write(self, frame: Frame) -> None:
        """Take the image's only frame."""
        if self._image is not None:
            raise ValueError(f"{self.path}: an image takes one frame; write a video instead")
        rgb = frame.rgb
        if rgb.shape not in [(*self._shape, 3), (*self._shape, 4)] or rgb.dtype != "uint8":
            wanted = (*self._shape, 3)
            raise ValueError(f"{self.path}: frame is {rgb.dtype} {rgb.shape}, expected uint8 {wanted}, or with alpha")
        if rgb.shape[2] == 4 and self._target.alpha is None:
            self.warnings.append(f"transparency dropped: {self.path.suffix.lower()} images have none")
            rgb = np.ascontiguousarray(rgb[..., :3])
        elif rgb.shape[2] == 4 and self._target.alpha is not None:
            self._settings |= self._target.alpha
        self._image = Image.fromarray(rgb)

    def commit(self) -> None:
        """Write the file under its name. Raises InputError without a frame, OutputError when it cannot be written."""
        if self._image is None:
            raise InputError(f"{self.path}: there is no frame to write; check the input")
        try:
            with _Checked(io.FileIO(self._temporary, "r+")) as file:
                self._image.save(file, format=self._target.name, **self._settings)
        except (OSError, ValueError) as error:  # ValueError: more pixels than the format can hold
            raise write_error(self.path, error) from error
        try:
            if self._fingerprint is not None:
                stamp(self._target, self._temporary, self._fingerprint)
            publish(self._temporary, self.path)
        except OSError as error:
            raise write_error(self.path, error) from error

    def abort(self) -> None:
        """Remove the temporary file; nothing after commit()."""
        discard(self._temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
