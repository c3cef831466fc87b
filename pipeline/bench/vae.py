"""Whole VAEs: ours against diffusers untiled, diffusers' blended tiling and torch.compile, on the same weights."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline.bench.first_use import FirstUseModel, first_use
from tvae.pipeline.bench.memory import Peak
from tvae.pipeline.bench.rivals import opened, tensor_of
from tvae.pipeline.bench.timing import call_seconds, free_memory, is_out_of_memory
from tvae.pipeline.device import backend_settings
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.calls import Side
from tvae.pipeline.models.families import FAMILIES, LatentGeometry
from tvae.pipeline.models.geometry import geometry_of
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.runner import RECORDED_AT
from tvae.presets import Preset

__all__ = ["VaeCase", "VaeRow", "bench_vae", "cast", "geometry", "input_of", "make_case"]

_LONG = 1.0
"""Seconds of a call that a recording makes no faster."""


@dataclass(frozen=True)
class VaeCase:
    """One input: ``batch`` pictures or clips of width x height pixels; frames is None for an image VAE."""

    side: Side
    width: int
    height: int
    batch: int = 1
    frames: int | None = None


@dataclass(frozen=True)
class VaeRow:
    """One way of running one case.

    seconds: median of warm calls, waiting for the device after each. first_seconds: the first call, with all that is
    done once (capture, compilation); second_seconds: the next. peak_bytes: of a
    warm call, beyond the weights that all share; first_peak_bytes: of the calls before; None where nobody counts.
    error: relative L2 against the reference, None without one. speedup: seconds of diffusers untiled, in the better of
    the layouts that were measured, over these. first_use_seconds: the first call of a process of its own with nothing
    on disk; next_use_seconds: of the process after that; None where they were not asked for.
    """

    case: VaeCase
    rival: str
    status: Literal["ok", "out of memory", "failed"]
    reason: str | None = None
    seconds: float | None = None
    seconds_per_frame: float | None = None
    first_seconds: float | None = None
    second_seconds: float | None = None
    peak_bytes: int | None = None
    first_peak_bytes: int | None = None
    error: float | None = None
    speedup: float | None = None
    first_use_seconds: float | None = None
    next_use_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-able, the case's values beside the others."""
        values = asdict(self)
        return {**values.pop("case"), **values}


def geometry(model: nn.Module) -> LatentGeometry:
    """How pixels and latents of this model relate. Raises UsageError for a model that takes clips as batches."""
    name = type(model).__name__
    family = FAMILIES.get(name)
    if family is not None and family.frames_in_batch:
        raise UsageError(f"{name} takes a clip as a batch of frames, which this benchmark does not make")
    return geometry_of(name, dict(getattr(model, "config", {})), lambda: model)


def make_case(of: LatentGeometry, side: Side, width: int, height: int, batch: int, frames: int | None) -> VaeCase:
    """A case that the model can represent: frames are rounded up to the next number it takes. Raises UsageError."""
    if width % of.spatial or height % of.spatial:
        raise UsageError(f"{width}x{height}: this VAE needs multiples of {of.spatial}")
    if of.temporal is None:
        if frames not in (None, 1):
            raise UsageError("--frames is for video VAEs; --batch takes several pictures at once")
        return VaeCase(side, width, height, batch)
    steps = -(-max(0, (frames or 1) - of.lead) // of.temporal)
    return VaeCase(side, width, height, batch, of.lead + max(steps, 0 if of.lead else 1) * of.temporal)


def cast(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model itself, moved. Its own ``to`` would warn of modules to keep in float32 even if there are none."""
    return nn.Module.to(model, device, dtype)


def input_of(case: VaeCase, of: LatentGeometry, seed: int = 3) -> Tensor:
    """float32 on the CPU: noise on a slow wave and a ramp, so that statistics differ from band to band."""
    scale = of.spatial if case.side == "decode" else 1
    spatial = (case.height // scale, case.width // scale)
    channels = of.latent_channels if case.side == "decode" else of.in_channels
    shape: tuple[int, ...] = (case.batch, channels, *spatial)
    if of.temporal is not None and case.frames is not None:
        steps = case.frames if case.side == "encode" else of.lead + (case.frames - of.lead) // of.temporal
        shape = (case.batch, channels, steps, *spatial)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    down, across = torch.linspace(0, 4, shape[-2]), torch.linspace(-1, 1, shape[-1])
    slow = 2 * torch.sin(down)[:, None] + across[None] * (down[:, None] / 2)
    size, wave = (0.5, 1.0) if case.side == "decode" else (0.1, 0.3)  # pixels stay near [-1, 1]
    return size * noise + wave * slow


def bench_vae(
    model: nn.Module,
    cases: Sequence[VaeCase],
    rivals: Sequence[str],
    preset: Preset,
    device: torch.device,
    dtype: torch.dtype,
    *,
    strip: int | None = None,
    reference: torch.dtype | None = torch.float32,
    repeat: int = 5,
    subject: FirstUseModel | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[VaeRow]:
    """Rows of every case in the order of ``rivals``; those of one case come together.

    All run under the preset's library settings, without TF32. strip: latent rows of ours, None for what it takes by
    itself. reference: type of the untiled run that errors are
    measured against (the weights cast to ``dtype``, then up); None measures none. subject: the same model by name, for
    first results in processes of their own; None measures none.
    """
    model = cast(model, device, dtype)
    of = geometry(model)
    name = str(preset.source)  # by its file: what takes memory now must not change what auto means half-way
    with torch.no_grad(), backend_settings(preset, dtype):
        for case in cases:
            x = input_of(case, of).to(device, dtype)
            tell(f"{_words(case)}: reference")
            exact = None
            if reference is not None:
                with backend_settings(preset, reference):
                    exact = _reference(model, case.side, x, reference)
            rows = []
            for rival in rivals:
                tell(f"{_words(case)}: {rival}")
                row = _row(rival, model, case, x, exact, name, strip, repeat)
                rows.append(row if subject is None or row.status != "ok" else _with_first_use(row, subject))
            untiled = [r.seconds for r in rows if r.rival in ("diffusers", "channels-last") and r.seconds is not None]
            for row in rows:
                faster = min(untiled) / row.seconds if untiled and row.seconds else None
                yield replace(row, speedup=faster)
            del x, exact


def _row(
    rival: str,
    model: nn.Module,
    case: VaeCase,
    x: Tensor,
    exact: Tensor | None,
    preset: str,
    strip: int | None,
    repeat: int,
) -> VaeRow:
    device = x.device
    free_memory(device)
    peak = Peak(device)
    last: list[Any] = [None]
    try:
        with opened(rival, model, case.side, preset, strip) as run:

            def call() -> None:
                last[0] = None  # or two results would be alive at once
                last[0] = run(x)

            peak.restart()
            first, second = call_seconds(call, device), call_seconds(call, device)
            wait_for_all()  # no run is recorded before, and small calls would all be over by then
            call()
            first_peak = peak.allocated()
            for _ in range(RECORDED_AT - 4 if second < _LONG else 0):  # the first one that is timed is recorded
                call()
            peak.restart()
            seconds = statistics.median(call_seconds(call, device) for _ in range(repeat))
            footprint = peak.footprint()
            error = None if exact is None else _relative_l2(tensor_of(last[0]), exact)
    except Exception as problem:  # of a rival, or of ours: an entry in the table either way
        if is_out_of_memory(problem):
            row = VaeRow(case, rival, "out of memory")
        else:
            lines = str(problem).strip().splitlines() or [""]
            row = VaeRow(case, rival, "failed", f"{type(problem).__name__}: {lines[0]}")
    else:
        pictures = case.batch * (case.frames or 1)
        row = VaeRow(case, rival, "ok", None, seconds, seconds / pictures, first, second, footprint, first_peak, error)
    last[0] = None
    free_memory(device)
    return row


def _with_first_use(row: VaeRow, subject: FirstUseModel) -> VaeRow:
    try:
        found = first_use(row.rival, row.case, subject)
    except RuntimeError as problem:
        return replace(row, reason=f"first use: {problem}")
    return replace(row, first_use_seconds=found.empty, next_use_seconds=found.again)


def _reference(model: nn.Module, side: Side, x: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The untiled result in this type, sample by sample; None where memory does not suffice."""
    try:
        exact = cast(copy.deepcopy(model), x.device, dtype)
        with reference_mode(exact):
            found = [tensor_of(call_reference(exact, side, one.to(dtype))) for one in x.split(1)]
        return torch.cat(found)
    except Exception as error:  # PyTorch has several for one that is out of memory
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        exact = found = None  # type: ignore[assignment]
        free_memory(x.device)


def _relative_l2(value: Tensor, reference: Tensor) -> float | None:
    """‖value - reference‖ / ‖reference‖, summed in float64; None where it is not finite."""
    gaps = norms = 0.0
    for one, exact in zip(value, reference, strict=True):
        wide = exact.double()
        gaps += float((one.double() - wide).square().sum())
        norms += float(wide.square().sum())
    error = (gaps / norms) ** 0.5 if norms else float("inf")
    return error if error < float("inf") else None


def _words(case: VaeCase) -> str:
    frames = "" if case.frames is None else f"x{case.frames}"
    return f"{case.side} {case.width}x{case.height}{frames}, batch {case.batch}"
