"""What stays of a film in parts when it cannot be put together."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tvae.pipeline.errors import OutputError
from tvae.pipeline.media import Frame, PictureSpec, open_parted_writer
from tvae.pipeline.media.film import Film

LIKE = PictureSpec(64, 64, Fraction(1, 25), Fraction(25))


def written(path: Path, *, state: bool) -> None:
    with open_parted_writer(path, LIKE) as writer:
        for number in range(3):
            writer.write(Frame(np.zeros((64, 64, 3), np.uint8), number, 1))
        writer.end_part()
        if state:
            writer.state_path.touch()
        writer.commit()


@pytest.mark.parametrize("state", [False, True])
def test_parts_stay_where_a_later_run_can_go_on(state: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others only take room, on a disk that is full."""

    def full(_film: Film) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Film, "finish", full)
    with pytest.raises(OutputError, match="No space left"):
        written(tmp_path / "film.mp4", state=state)
    left = [path.name for folder in tmp_path.iterdir() for path in folder.iterdir()]
    assert sorted(left) == (["000000.packets", "state.safetensors"] if state else [])
    assert bool([*tmp_path.iterdir()]) == state
