"""Pictures of one size share a call; what they give is what each gives alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Job
from tvae.pipeline.jobs.batches import PATIENCE, Batches, Waiting
from tvae.pipeline.jobs.compute import decode_pictures, encode_pictures, expect_pictures
from tvae.pipeline.jobs.pictures import Picture
from tvae.pipeline.latents import open_latents
from tvae.pipeline.session import prepared
from tvae.pipeline.session.model import open_model

Run = Callable[..., Any]


def of_size(side: int, number: int = 0, *, alone: bool = False) -> Picture:
    nothing: Any = None
    values = torch.empty((side, side, 3), dtype=torch.uint8)
    return Picture(nothing, Path(str(number)), "builtin", values, side * side, nothing, alone=alone)


def test_equal_sizes_share_a_call() -> None:
    waiting = Waiting(Batches(4, "cpu"))
    for number in range(7):
        waiting.add(of_size(8 if number % 2 else 16, number))
    taken = []
    while waiting:
        likely = waiting.likely("builtin")
        assert waiting.likely("another") == []
        taken.append([int(picture.output.name) for picture in waiting.take()])
        assert [int(picture.output.name) for picture in likely] == taken[-1]
    assert waiting.likely("builtin") == []
    assert taken == [[0, 2, 4, 6], [1], [3], [5]], "a full call first, then the one that has waited longest"


def test_nobody_waits_for_ever() -> None:
    waiting = Waiting(Batches(2, "cpu"))
    waiting.add(of_size(16))
    taken = []
    for _ in range(PATIENCE + 1):
        waiting.add(of_size(8))
        waiting.add(of_size(8))
        taken.append(waiting.take()[0].pixels)
    assert taken == [*[64] * PATIENCE, 256]


def test_two_share_a_call_where_no_other_size_waits() -> None:
    waiting = Waiting(Batches(None, "cuda"))
    for side in (1024, 1024, 1088, 1024, 1024):
        waiting.add(of_size(side))
    assert [[p.pixels for p in waiting.take()] for _ in range(3)] == [[1024**2]] * 3
    assert [len(waiting.take()) for _ in range(2)] == [1, 1]
    for _ in range(3):
        waiting.add(of_size(1024))
    assert [len(waiting.take()) for _ in range(2)] == [2, 1]


def test_how_many_pay() -> None:
    cuda = Batches(None, "cuda")
    assert [cuda.most(of_size(side)) for side in (64, 512, 1024, 4096)] == [64, 8, 2, 1]
    assert [*cuda.sizes(of_size(512))] == [8, 2, 1]
    assert [*cuda.sizes(of_size(1024))] == [2, 1]
    assert [*cuda.sizes(of_size(1024), mixed=True)] == [1]
    assert [*cuda.sizes(of_size(512), mixed=True)] == [8, 2, 1]
    assert [*Batches(2, "cuda").sizes(of_size(1024), mixed=True)] == [2, 1], "as the user wants it"
    assert cuda.most(of_size(512, alone=True)) == 1
    cuda.too_large(8, of_size(512))
    assert [cuda.most(of_size(side)) for side in (512, 1024)] == [4, 1]
    assert [*Batches(3, "cpu").sizes(of_size(4096))] == [3, 1]


@pytest.fixture
def gathering(stand_in: Run) -> Any:
    """A stand-in whose first call waits until all the others are read."""

    class Gathering(type(stand_in())):  # type: ignore[misc]
        most = 99
        read = threading.Semaphore(0)

        def encode(self, x: Any) -> Any:
            while not self.shapes and not self.ready():
                pass
            if x.shape[0] > self.most:
                self.shapes.append(tuple(x.shape))
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().encode(x)

        @staticmethod
        def ready() -> bool:
            return True

    return Gathering(stand_in().info)


@pytest.fixture
def all_read(monkeypatch: pytest.MonkeyPatch, gathering: Any) -> Callable[[int], None]:
    """Lets the first call wait for so many pictures."""

    def all_read(count: int) -> None:
        from tvae.pipeline.jobs import reading

        read, prepare = list[int](), reading.prepare

        def counted(*args: Any) -> Any:
            read.append(1)
            return prepare(*args)

        monkeypatch.setattr(reading, "prepare", counted)
        gathering.ready = lambda: len(read) == count

    return all_read


@pytest.mark.parametrize("posterior", ["mean", "sample", "moments"])
@pytest.mark.parametrize("batch", [None, 3])
def test_a_batch_gives_what_each_gives_alone(
    posterior: Any, batch: int | None, run: Run, picture: Run, gathering: Any, all_read: Run, tmp_path: Path
) -> None:
    sources = [picture(f"in/{n}.png", 32 if n % 3 else 16, 16, seed=n) for n in range(12)]
    for name, many in (("alone", 1), ("batch", batch)):
        if name == "batch":
            all_read(12)
        done, _ = run("encode", *sources, output=tmp_path / name, model=gathering, batch=many, posterior=posterior)
        assert done.done == 12
        if name == "alone":
            assert {shape[0] for shape in gathering.shapes} == {1}
            gathering.shapes.clear()
    assert max(shape[0] for shape in gathering.shapes) == (batch or 4)
    for source in sources:
        (one,), (other,) = (open_latents(tmp_path / name / f"{source.name}.safetensors") for name in ("alone", "batch"))
        for name, tensor in one.tensors.items():
            assert torch.equal(tensor, other.tensors[name])


def test_pictures_decoded_together(run: Run, picture: Run, tmp_path: Path) -> None:
    sources = [picture(f"in/{n}.png", 32, 16, seed=n) for n in range(9)]
    run("encode", *sources, output=tmp_path / "latents")
    assert run("decode", tmp_path / "latents", output=tmp_path / "out", batch=4)[0].done == 9
    assert run("roundtrip", *sources, output=tmp_path / "back", batch=4)[0].done == 9
    for source in sources:
        for folder in ("out", "back"):
            made = Image.open(tmp_path / folder / source.name)
            assert (np.asarray(made) == np.asarray(Image.open(source))).all()


def test_a_call_without_room_is_split_and_remembered(
    run: Run, picture: Run, gathering: Any, all_read: Run, tmp_path: Path
) -> None:
    sources = [picture(f"in/{n:02d}.png", seed=n) for n in range(40)]
    all_read(40)
    gathering.most = 3
    done, _ = run("encode", *sources, output=tmp_path / "out", model=gathering, batch=8)
    assert (done.done, done.failed) == (40, 0)
    sizes = [shape[0] for shape in gathering.shapes]
    assert [size for size in sizes if size > 3] == [8, 4, 4], "eight, its halves, and no more"


def test_one_bad_picture_of_a_batch_fails_alone(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    class Overflowing(type(stand_in())):  # type: ignore[misc]
        def encode(self, x: Any) -> Any:
            found = super().encode(x)
            dark = (x.flatten(1) < -0.999).all(1)
            found.mean[dark] = float("nan")
            return found

    sources = [picture(f"in/{n}.png", seed=n) for n in range(8)]
    Image.new("RGB", (32, 16)).save(sources[5])
    for operation in ("encode", "roundtrip"):
        done, _ = run(operation, *sources, output=tmp_path / operation, model=Overflowing(stand_in().info), batch=8)
        assert (done.done, done.failed) == (7, 1)
        assert len([*(tmp_path / operation).iterdir()]) == 7


def test_batches_that_cannot_be(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="from 1 up"):
        Job("encode", ("x",), batch=0)
    with pytest.raises(UsageError, match="takes one clip at a time"):
        run("encode", picture(), output=tmp_path / "out", model=stand_in(temporal_factor=4), batch=2)
    assert run("encode", picture(), output=tmp_path / "out", model=stand_in(temporal_factor=4), batch=1)[0].done == 1


@pytest.mark.parametrize("operation", ["encode", "decode"])
@torch.no_grad()
def test_what_comes_next_is_planned_before(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call itself finds its plan."""
    model = open_model("builtin", device="cpu")
    values: dict[int, list[Any]] = {}
    for size in (4, 6):
        values[size] = [
            torch.zeros(8 * size, 64, 3, dtype=torch.uint8),
            torch.zeros(8 * size, 64, 3, dtype=torch.uint8),
        ]
        if operation == "decode":
            values[size] = [torch.zeros(model.info.latent_channels, 1, size, 8)] * 2

    def compute(size: int) -> None:
        if operation == "encode":
            encode_pictures(model, values[size], "mean", "raw", 0)
        else:
            decode_pictures(model, values[size])

    compute(4)
    expect_pictures(model, operation, values[6])  # type: ignore[arg-type]
    monkeypatch.setattr(prepared, "choose_plan", lambda *_, **__: pytest.fail("a plan"))
    compute(6)
