"""Caches whose images stand in a file of the trainer: its concepts, which are folders with settings.

The trainer finds such a cache by what the file says, and its entries by their number. So tvae reads the file, lists the
images as the trainer does, and numbers them.
"""

from __future__ import annotations

__all__ = ["READERS"]

READERS = ("onetrainer",)
"""Trainers that have such a file, by the name that ``--for`` knows them by."""
