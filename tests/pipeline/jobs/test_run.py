"""Good and bad items side by side, interruptions, and what is refused as a whole."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from tvae.pipeline.errors import InputError, PlanError, UnsupportedOp, UsageError
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, ItemPlanned, ItemStarted, Progress

Run = Callable[..., Any]


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def failures(events: list[Event]) -> dict[str, str]:
    return {event.input.name: event.error for event in events if isinstance(event, ItemFailed)}


@pytest.mark.long
def test_bad_media_fail_alone(run: Run, picture: Run, clip: Run, tmp_path: Path) -> None:
    good = picture("good.png")
    (tmp_path / "text.mp4").write_text("this is no video\n" * 100)
    (tmp_path / "zero.jpg").touch()
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:-40])
    whole = clip("whole.mkv").read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    names = ("text.mp4", "zero.jpg", "cut.png", "cut.mkv", "empty", "good.png")
    for operation in ("encode", "roundtrip"):
        out = tmp_path / operation
        done, events = run(operation, *(tmp_path / name for name in names), output=out)
        assert (done.done, done.failed) == (1, 5)
        assert failures(events).keys() == set(names) - {"good.png"}
        assert all("\n" not in error for error in failures(events).values())
        assert left(out) == ["good.png.safetensors" if operation == "encode" else "good.png"]


def test_bad_latents_fail_alone(run: Run, picture: Run, clip: Run, stand_in: Run, tmp_path: Path) -> None:
    run("encode", picture("a.png"), picture("b.png"), clip("c.mkv"), output=tmp_path / "lat")
    folder = tmp_path / "lat"
    (folder / "cut.safetensors").write_bytes((folder / "a.png.safetensors").read_bytes()[:-8])
    (folder / "zero.safetensors").touch()
    broken = folder / "c.mkv.latents" / "000000.safetensors"
    broken.write_bytes(broken.read_bytes()[:-8])
    run("encode", tmp_path / "b.png", output=folder / "other.safetensors", model=stand_in(weights_sha256="b" * 64))
    (folder / "half.latents").mkdir()
    done, events = run("decode", folder, output=tmp_path / "out")
    assert failures(events).keys() == {
        "cut.safetensors",
        "zero.safetensors",
        "c.mkv.latents",
        "half.latents",
        "other.safetensors",
    }
    assert "another VAE" in failures(events)["other.safetensors"]
    assert left(tmp_path / "out") == ["a.png", "b.png"]
    assert done.done == 2


def test_values_that_are_not_finite_are_never_written(
    run: Run, picture: Run, clip: Run, stand_in: Run, tmp_path: Path
) -> None:
    class Overflowing(type(stand_in())):  # type: ignore[misc]
        def encode(self, x: torch.Tensor) -> Any:
            posterior = super().encode(x)
            posterior.mean[..., 0] = float("nan")
            return posterior

    model = Overflowing(stand_in().info)
    inputs = (picture(), clip())
    for operation in ("encode", "roundtrip"):
        done, events = run(operation, *inputs, output=tmp_path / operation, model=model)
        assert done.failed == 2
        assert all("finite" in error or "NaN" in error for error in failures(events).values())
        assert left(tmp_path / operation) == []


@pytest.mark.parametrize("operation", ["encode", "roundtrip"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interruption_leaves_nothing_half_done(
    run: Run, clip: Run, stand_in: Run, tmp_path: Path, operation: str, error: type[BaseException]
) -> None:
    class Interrupted(type(stand_in())):  # type: ignore[misc]
        def encode(self, x: torch.Tensor) -> Any:
            if len(self.shapes) > 40:
                raise error
            return super().encode(x)

    source = clip(times=tuple(range(0, 4000, 40)))
    with pytest.raises(error):
        run(operation, source, output=tmp_path / "out", model=Interrupted(stand_in().info))
    kept = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    complete = {"000000.safetensors", "000001.safetensors", ".tvae-state.safetensors"}  # or the first alone
    assert kept <= (complete if operation == "encode" else set())


def test_memory_runs_out_for_one_item(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    class Small(type(stand_in())):  # type: ignore[misc]
        def encode(self, x: torch.Tensor) -> Any:
            if x.shape[-1] > 64:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().encode(x)

    model = Small(stand_in().info)
    done, events = run("encode", picture("l.png", width=80), picture("s.png"), output=tmp_path / "o", model=model)
    assert (done.done, done.failed) == (1, 1)
    assert "--strip" in failures(events)["l.png"]


def test_errors_of_the_request_stop_the_run(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    def raising(error: Exception) -> Any:
        class Raising(type(stand_in())):  # type: ignore[misc]
            def encode(self, x: torch.Tensor) -> Any:
                raise error

        return Raising(stand_in().info)

    a, b = picture("a.png"), picture("b.png")
    with pytest.raises(UnsupportedOp):
        run("encode", a, b, output=tmp_path / "o", model=raising(UnsupportedOp("aten.foo", "decoder")))
    with pytest.raises(PlanError):
        run("encode", a, output=tmp_path / "o", model=raising(PlanError("too small")))
    done, _ = run("encode", a, b, output=tmp_path / "o", model=raising(PlanError("too small")))
    assert done.failed == 2
    done, _ = run("encode", a, output=tmp_path / "o", model=raising(InputError("this shape")))
    assert done.failed == 1


def test_requests_that_cannot_be_met(run: Run, picture: Run, stand_in: Run, tmp_path: Path) -> None:
    source, out = picture(), tmp_path / "out"
    with pytest.raises(UsageError, match="no posterior"):
        run("encode", source, output=out, posterior="sample", model=stand_in(posterior=False))
    for fields in ({"preset": "nonsense"}, {"device": "nonsense"}):
        with pytest.raises(UsageError, match="nonsense"):
            run("decode", source, output=out, **fields)
    for fields in ({"codec": "nonsense"}, {"color": "nonsense"}, {"encoder_options": (("nonsense", "1"),)}):
        with pytest.raises(UsageError, match="nonsense"):
            run(
                "roundtrip",
                tmp_path / "c.mkv" if (tmp_path / "c.mkv").touch() else source.with_name("c.mkv"),
                output=out,
                **fields,
            )
    assert not out.exists()


def test_fields_out_of_range() -> None:
    from tvae.pipeline.jobs import Job

    for fields in ({"strip": 0}, {"seed": -1}, {"size": (0, 5)}, {"fps": 0}, {"posterior": "mode"}, {"audio": "keep"}):
        with pytest.raises(UsageError):
            Job("encode", ("x",), **fields)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing to encode"):
        Job("encode", ())


@pytest.mark.parametrize("fps", ["1/1000000000", "1/3000000000", "3000000000", "29.97002997002997", "1/100000001"])
def test_rates_that_no_film_can_have(fps: str) -> None:
    from tvae.pipeline.jobs import Job

    with pytest.raises(UsageError, match="cannot be stored"):
        Job("decode", ("x",), fps=Fraction(fps))


def test_a_dry_run_touches_nothing(run: Run, picture: Run, clip: Run, tmp_path: Path) -> None:
    inputs = (picture(), clip())
    before = left(tmp_path)
    for operation in ("encode", "roundtrip"):
        done, events = run(operation, *inputs, output=tmp_path / "out", dry_run=True)
        assert sum(isinstance(event, ItemPlanned) for event in events) == 2
        assert (done.done, done.skipped, done.failed, done.planned) == (0, 0, 0, 2)
    assert left(tmp_path) == before


def test_a_dry_run_of_many_opens_none_whose_name_tells_what_it_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"not read")
    (tmp_path / "loop.png").symlink_to("loop.png")
    monkeypatch.setattr("tvae.pipeline.jobs.dry_run.kind_of", lambda *_: pytest.fail("a file was opened"))
    done, events = run("encode", tmp_path, output=tmp_path / "out", dry_run=True)
    assert (done.planned, done.failed) == (3, 1)
    (failed,) = (event for event in events if isinstance(event, ItemFailed))
    assert failed.error == f"cannot be read: {os.strerror(errno.ELOOP)}"


def test_events_come_in_order_and_are_json(run: Run, clip: Run, tmp_path: Path) -> None:
    _, events = run("encode", clip(), output=tmp_path / "out")
    lines = [json.loads(json.dumps(event.to_json(), allow_nan=False)) for event in events]
    assert [line["type"] for line in lines] == [
        "run_started",
        "item_started",
        *["progress"] * 4,
        "warning",  # colour not tagged
        "item_done",
        "run_done",
    ]
    assert [event.done for event in events if isinstance(event, Progress)] == [1, 2, 3, 4]
    (started,) = (event for event in events if isinstance(event, ItemStarted))
    (done,) = (event for event in events if isinstance(event, ItemDone))
    assert started.output == done.output == tmp_path / "out" / "c.mkv.latents"
    assert lines[-1]["done"] == 1
