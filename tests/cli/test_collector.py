"""Python's collector rests while a run starts, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from tvae.cli.collector import collecting_later


def test_it_rests_until_it_is_called() -> None:
    with collecting_later() as collecting:
        assert not gc.isenabled()
        collecting()
        assert gc.isenabled()
    assert gc.isenabled()


def test_it_works_again_however_the_block_is_left() -> None:
    with pytest.raises(ValueError, match="a"), collecting_later():
        raise ValueError("a")
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collecting_later() as collecting:
            collecting()
        assert not gc.isenabled()
    finally:
        gc.enable()
