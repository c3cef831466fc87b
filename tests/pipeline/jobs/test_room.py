"""How much a run may hold, and that a picture which waits holds no more than it needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tvae.pipeline.jobs import overlap, room
from tvae.pipeline.jobs.room import LEAST, MOST, Room, room_bytes

Run = Callable[..., Any]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("available", "vram", "expected"),
    [
        (128 * GIB, None, MOST),
        (24 * GIB, None, 24 * GIB // 32),
        (4 * GIB, None, LEAST),
        (None, None, LEAST),  # the system does not tell
        (128 * GIB, "2GiB", 2 * GIB // 16),
        (128 * GIB, 64 * GIB, LEAST),
    ],
)
def test_what_a_run_may_hold(
    available: int | None, vram: str | int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: available)
    assert room_bytes(vram) == expected


def test_what_is_given_back_can_be_had() -> None:
    one = Room(10)
    one.take(9)
    assert one.keep(9, 3) == 3
    one.take(7)
    one.give(3 + 7)
    one.take(10)


def test_who_needs_more_does_not_wait_and_others_do() -> None:
    one, had = Room(10), threading.Event()
    one.take(4)
    assert one.keep(4, 30) == 30
    other = threading.Thread(target=lambda: (one.take(1), had.set()))
    other.start()
    assert not had.wait(0.1)
    one.give(30)
    assert had.wait(20)
    other.join()


@pytest.mark.parametrize(("operation", "of_pixel"), [("encode", 3 + 1), ("roundtrip", 3 + 8)])
def test_what_a_picture_holds_while_it_waits(
    operation: str, of_pixel: int, run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its levels, and latents of four channels with variance and mirror image, an eighth each way; of a picture that
    is decoded again, what decoding takes, which is more than reading took."""
    kept: list[tuple[int, int]] = []
    keep = Room.keep

    def noted(self: Room, held: int, size: int) -> int:
        kept.append((held, keep(self, held, size)))
        return kept[-1][1]

    monkeypatch.setattr(Room, "keep", noted)
    monkeypatch.setattr(overlap, "MOST_ITEMS", 1 << 20)
    run(operation, picture("a.png", 640, 320), output=tmp_path / "out")
    assert kept == [(640 * 320 * 10, 640 * 320 * of_pixel)]


def test_alpha_counts_where_there_is_any(
    run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is read and turned, and then until it is written."""
    kept: list[tuple[int, int]] = []
    keep = Room.keep
    monkeypatch.setattr(Room, "keep", lambda self, held, size: kept.append((held, size)) or keep(self, held, size))
    monkeypatch.setattr(overlap, "MOST_ITEMS", 1 << 20)
    source = picture("a.png", 640, 320)
    with Image.open(source) as image:
        image.putalpha(Image.new("L", image.size, 9))
        image.save(source)
    for alpha, read, waits in (("keep", 12, 3 + 1 + 1), ("drop", 10, 3 + 1)):
        kept.clear()
        run("encode", source, output=tmp_path / alpha, alpha=alpha)
        assert kept == [(640 * 320 * read, 640 * 320 * waits)]


def counting(stand_in: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model that is slow, and says in ``most`` how many pictures were read and not written, at most."""
    from tvae.pipeline.jobs import reading

    read, prepare = list[int](), reading.prepare
    monkeypatch.setattr(reading, "prepare", lambda *args: read.append(1) or prepare(*args))

    class Counting(type(stand_in())):  # type: ignore[misc]
        most = 0

        def encode(self, x: Any) -> Any:
            time.sleep(0.03)
            self.most = max(self.most, len(read) - len([*out.glob("*.safetensors")]))
            return super().encode(x)

    return Counting(stand_in().info)


@pytest.mark.long
def test_few_tiny_pictures_wait(
    run: Run, stand_in: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much room there is: what Python keeps for each is not counted."""
    monkeypatch.setattr(overlap, "MOST_ITEMS", 4)
    for number in range(30):
        source = picture(f"in/{number:02d}.png", 16, 16, seed=number)
    model = counting(stand_in, tmp_path / "out", monkeypatch)
    done, _ = run("encode", source.parent, output=tmp_path / "out", model=model, batch=1)
    assert done.done == 30
    assert 1 <= model.most <= 4


def test_large_photos_wait_small(
    run: Run, stand_in: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one is read at a time, and yet others have been read when the first is computed: it waits scaled down."""
    monkeypatch.setattr(overlap, "room_bytes", lambda _vram: 320 * 160 * 12)
    count, three = [0], threading.Event()
    for number in range(4):
        source = picture(f"in/{number}.png", 320, 160, seed=number)
    from tvae.pipeline.jobs import reading

    prepare = reading.prepare

    def counted(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 3:
            three.set()
        return prepare(*args)

    monkeypatch.setattr(reading, "prepare", counted)

    class Waiting(type(stand_in())):  # type: ignore[misc]
        def encode(self, x: Any) -> Any:
            assert three.wait(20), "the first picture keeps the others from being read"
            return super().encode(x)

    done, _ = run(
        "encode", source.parent, output=tmp_path / "out", model=Waiting(stand_in().info), size=(32, 16), batch=1
    )
    assert (done.done, done.failed) == (4, 0)


def test_small_photos_that_become_large_are_counted_as_large(
    run: Run, stand_in: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16x16 to 512x512: four fit when they wait, beside what four readers have at that moment."""
    monkeypatch.setattr(overlap, "room_bytes", lambda _vram: 4 * 512 * 512 * 4)
    out = tmp_path / "out"
    for number in range(24):
        source = picture(f"in/{number:02d}.png", 16, 16, seed=number)
    model = counting(stand_in, out, monkeypatch)
    assert run("encode", source.parent, output=out, model=model, size=(512, 512), batch=1)[0].done == 24
    assert 1 <= model.most <= 4 + 4
