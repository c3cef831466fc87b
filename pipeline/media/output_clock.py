"""Where frames go in time in the file that is written."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media.packet_times import MOST_SECONDS
from tvae.pipeline.media.spec import PictureSpec, WriteOptions

__all__ = ["MAX_TIMESCALE", "OutputClock", "check_rate"]

MAX_TIMESCALE = 2**31 - 1
"""Ticks a second, and ticks of a frame, for MP4."""

_MOST_TICKS = 10**8
"""Of a frame at a constant rate: MP4 counts those between frames, and by how many frames are reordered, in 31 bits."""


def check_rate(rate: Fraction) -> None:
    """UsageError for a number of frames a second that films cannot have."""
    if rate <= 0:
        raise UsageError(f"fps {rate} is not a frame rate; it must be above 0")
    if rate.numerator > MAX_TIMESCALE or rate.denominator > _MOST_TICKS:
        raise UsageError(
            f"fps {rate} cannot be stored: of {rate.numerator} / {rate.denominator} the first may be at most "
            f"{MAX_TIMESCALE}, the second {_MOST_TICKS}; give a simpler one, such as 30000/1001"
        )


class OutputClock:
    """Where frames go in time: pts and durations in ``time_base`` (1/N), from the frames' own or from --fps.

    No file shows what lies before zero: ``delay`` is by how many seconds a film that starts there is moved, known from
    its first frame on. ``rate`` is nominal. Raises UsageError when there is nothing to go by.
    """

    def __init__(self, like: PictureSpec, options: WriteOptions) -> None:
        rate = options.fps if options.fps is not None else like.frame_rate
        self._constant = options.fps is not None or like.time_base is None
        if self._constant and rate is None:
            raise UsageError("the input has no timestamps and no frame rate; give one with --fps")
        if rate is not None and rate <= 0:
            raise UsageError(f"a rate of {rate} frames a second is impossible; give another --fps")
        self.rate = rate or Fraction(25)
        unit = 1 / self.rate if self._constant or like.time_base is None else like.time_base
        if unit.denominator > MAX_TIMESCALE:
            raise UsageError(f"timestamps in units of {unit} s cannot be stored; give a simpler rate with --fps")
        self._ticks = unit.numerator
        self._period = max(1, round(1 / (self.rate * unit)))
        self.time_base = Fraction(1, unit.denominator)
        self.count = 0
        self.delay = Fraction(0)
        self._last: int | None = None

    def place(self, pts: int | None, duration: int | None, path: Path) -> tuple[int, int]:
        """pts and duration of the next frame, from its own. Raises InputError for those that no film can have."""
        if self._constant or pts is None:
            pts, duration = self.count * self._period, self._period
        duration = duration or self._period
        if self._last is None:
            self.delay = max(0, -pts * self._ticks) * self.time_base
        elif pts <= self._last:
            raise InputError(
                f"{path}: timestamps do not increase at frame {self.count} ({self._last}, {pts}); give --fps"
            )
        ticks = duration * self._ticks
        if ticks > MAX_TIMESCALE or pts * self._ticks * self.time_base > MOST_SECONDS:
            raise InputError(
                f"{path}: the time of frame {self.count} cannot be stored ({pts}, for {duration}, in units of "
                f"{self._ticks * self.time_base} s); the input's times may be damaged, give --fps"
            )
        self._last = pts
        self.count += 1
        return pts * self._ticks + int(self.delay / self.time_base), ticks

    @property
    def warnings(self) -> list[str]:
        """What became of times that no file can hold."""
        return [f"started before zero; all of it was moved by {float(self.delay):g} s"] if self.delay else []
