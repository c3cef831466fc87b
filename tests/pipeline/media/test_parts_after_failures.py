"""What stays of a film in parts when it cannot be put together."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvae.pipeline.errors import OutputError
from tvae.pipeline.media import Frame, PictureSpec, film, open_parted_writer
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


@pytest.mark.parametrize("frames", [0, 1])
def test_an_interruption_while_it_is_given_up(frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the trial's file is closed, or that of a part that has begun: no temporary file stays."""

    class Closing:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def close(self) -> None:
            self._file.close()
            raise KeyboardInterrupt

    def begun() -> None:
        writer = open_parted_writer(tmp_path / "film.mp4", LIKE)
        with writer:
            writer.write(Frame(np.zeros((64, 64, 3), np.uint8), 0, 1))
            part = writer._part  # type: ignore[attr-defined]
            part.file._file = Closing(part.file._file)
            raise KeyboardInterrupt

    if not frames:
        opened = film.av.open
        monkeypatch.setattr(film.av, "open", lambda *args, **more: Closing(opened(*args, **more)))
    with pytest.raises(KeyboardInterrupt):
        begun()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
