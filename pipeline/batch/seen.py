"""Which of very many names came before, in 11 to 21 bytes for each."""

from __future__ import annotations

from array import array

__all__ = ["Seen"]


class Seen:
    """Keeps 64 bits of each name's hash: of two names with the same bits the second counts as seen, though it was not.

    A set keeps an object for each, 77 bytes in all. Here they lie in one row of numbers, each in the first free
    place from that on which its last bits name; 0 is a free place.
    """

    def __init__(self) -> None:
        self._places = array("Q", [0]) * 1024
        self._count = 0

    def add(self, name: str) -> bool:
        """Was it there before?"""
        if 4 * self._count >= 3 * len(self._places):
            self._grow()
        return self._put(hash(name) % 2**64 or 1)

    def _put(self, bits: int) -> bool:
        places, last = self._places, len(self._places) - 1
        place = bits & last
        while there := places[place]:
            if there == bits:
                return True
            place = (place + 1) & last
        places[place] = bits
        self._count += 1
        return False

    def _grow(self) -> None:
        before, self._count = self._places, 0
        self._places = array("Q", [0]) * (2 * len(before))
        for bits in before:
            if bits:
                self._put(bits)
