"""A VAE as jobs and commands compute with it: opened by name, tensors in, tensors out.

Unlike ``TiledVAE`` it holds weights. The module is built (and diffusers imported) only when a graph has to be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.device import choose_preset, pick_device, uses_channels_last
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.engine.run.storage import ROWS, RowSink, RowSource
from tvae.pipeline.errors import UsageError
from tvae.pipeline.memory.amount import parse_size
from tvae.pipeline.memory.limits import Limits
from tvae.pipeline.models import kl
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.families import FAMILIES, LatentGeometry, goes_by_frames
from tvae.pipeline.models.geometry import geometry_of
from tvae.pipeline.models.load import load_module, load_weights, locate_vae, values_of
from tvae.pipeline.models.one_side import check_lacks
from tvae.pipeline.models.source import VaeSource
from tvae.pipeline.models.space import space_of
from tvae.pipeline.models.streaming import ClipStream
from tvae.pipeline.session.choose_plan import Example
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.graph_cache import fits_weights
from tvae.pipeline.session.identity.sources import home_of, stored_key
from tvae.pipeline.session.model_info import ModelInfo
from tvae.pipeline.session.outputs import Posterior, Spec, posterior_of
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.session import Session
from tvae.pipeline.session.subject import Subject
from tvae.pipeline.session.task import Task
from tvae.pipeline.settings.cores import usable_cores
from tvae.presets import Preset

__all__ = ["DTYPES", "Model", "Posterior", "open_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_MOMENTS: Spec = {"posterior": {"moments": {"tensor": 0}, "point": False}}
_RECORDED_PIXELS = 1 << 24
"""Pictures up to here are whole on the device where runs are recorded: a recording has fixed addresses."""
_WHOLE_PIXELS = 1 << 18
"""The same where none are recorded: 3 MiB of floats."""


def open_model(
    spec: str,
    *,
    vae_of: str | None = None,
    allow_pickle: bool = False,
    preset: str = "auto",
    dtype: str | None = None,
    device: str | None = None,
    strip: int | None = None,
    vram: str | int | None = None,
    spill: str | Path | None = None,
    allow_whole: bool = False,
    threads: int | None = None,
    sharers: int = 1,
    wait_for_kernels: bool = True,
    kind: Callable[..., Model] | None = None,
) -> Model:
    """Open ``builtin``, a diffusers folder, a safetensors file or a hub id for computing. UsageError before any work.

    dtype: float32, bfloat16, float16 (or fp32, bf16, fp16); None: the preset's. strip: latent rows. vram: memory that
    the process may hold on the device, such as ``8GiB``; None: the preset's share of what is free. spill: folder for
    what goes to disk. threads: that compute on a CPU, at most; None: PyTorch's number, and no more than
    ``usable_cores``. vae_of, allow_pickle: see ``locate_vae``. sharers: processes that share
    what is free of the device. wait_for_kernels: see ``Limits``. kind: what is made of it, None: a ``Model``.
    """
    where = pick_device(device)
    chosen = choose_preset(preset, where)
    name = _SHORT.get(dtype or "", dtype or chosen.dtype)
    if name not in DTYPES:
        raise UsageError(f"unknown dtype '{dtype}'; one of {', '.join((*DTYPES, *_SHORT))}")
    if strip is not None and strip < 1:
        raise UsageError(f"a strip has at least one latent row, not {strip}")
    source = locate_vae(spec, vae_of, allow_pickle=allow_pickle)
    numbers = DTYPES[name]
    if numbers == torch.float16 and source.config.get("force_upcast", False):
        numbers = torch.float32  # the checkpoint overflows in float16 and says so
    budget, folder = None if vram is None else parse_size(vram), None if spill is None else Path(spill)
    share = chosen.memory_share / sharers
    how: Any = {"wait_for_kernels": wait_for_kernels}
    limits = Limits(strip or chosen.strip_rows, strip is not None, budget, share, folder, **how)
    more = allow_whole, threads or min(torch.get_num_threads(), usable_cores())
    return (kind or Model)(source, chosen, numbers, where, limits, *more)


class Model:
    """See the module's docstring. ``open_model`` makes one."""

    def __init__(
        self,
        source: VaeSource,
        preset: Preset,
        dtype: torch.dtype,
        device: torch.device,
        limits: Limits,
        allow_whole: bool,
        threads: int,
        peers: Peers | None = None,
    ) -> None:
        self.source, self.preset, self.dtype, self.device, self.limits = source, preset, dtype, device, limits
        self._loaded: nn.Module | None = None
        known = source.class_name == kl.CLASS_NAME and source.keys_are_current
        self._layers = kl.config_of(source.config) if known else None
        self._stored: dict[str, Tensor] = {}
        shapes = {name: list(spec.shape) for name, spec in sorted(source.tensors.items())}
        facts = {"class": source.class_name, "config": source.config_sha256, "weights": shapes}
        subject = Subject(
            source.class_name,
            None if self._layers is not None else stored_key(home_of(source.class_name), facts),
            self._module,
            self._by_name,
            lambda: self._stored,
            geometry=lambda: self.geometry,
            fits=lambda graph, _spec: fits_weights(graph, source.tensors, all_named=False),
            written=self._written,
            check=partial(check_lacks, source.lacks),
        )
        more: dict[str, Any] = {"allow_whole": allow_whole, "threads": threads, "peers": peers}
        self._session = Session(subject, preset, dtype, device, limits, **more)

    @cached_property
    def info(self) -> ModelInfo:
        """Identity and geometry; the weights' checksum is computed on first use."""
        geometry, family = self.geometry, FAMILIES.get(self.source.class_name)
        return ModelInfo(
            id=self.source.id,
            class_name=self.source.class_name,
            config_hash=self.source.config_sha256,
            weights_sha256=self.source.weights_sha256,
            spatial_factor=geometry.spatial,
            temporal_factor=geometry.temporal,
            lead_frames=geometry.lead,
            latent_channels=geometry.latent_channels,
            in_channels=geometry.in_channels,
            posterior=family is None or not family.point,
            space=space_of(self.source),
            latent_group=geometry.latent_group,
            path=self.source.path,
            values=values_of(self.source),
            lacks=self.source.lacks,
        )

    @cached_property
    def geometry(self) -> LatentGeometry:
        """How pixels and latents relate."""
        return geometry_of(self.source.class_name, self.source.config, lambda: load_module(self.source))

    def encode(self, x: Tensor | RowSource) -> Posterior:
        """x [N, 3, H, W] (video VAE: [N, 3, T, H, W]) in [-1, 1], of sizes it can represent -> raw-space posterior.
        A source gives a picture by rows."""
        if self._frames_in_batch and isinstance(x, Tensor):
            found = self._run("encode", x[0].transpose(0, 1), Call())
            flip = (found.mean, found.logvar)
            mean, logvar = (None if t is None else t.transpose(0, 1).unsqueeze(0) for t in flip)
            assert mean is not None
            return Posterior(mean, logvar)
        if not isinstance(x, Tensor) and self.preset.cuda_graphs and x.shape[-1] * x.shape[-2] <= _RECORDED_PIXELS:
            x = x.fetch(0, x.shape[-2]).result()
        return self._run("encode", x, Call())

    def decode(self, z: Tensor) -> Tensor:
        """Raw-space latents [N, C, h, w] (video VAE: [N, C, t, h, w]) -> pixels in [-1, 1], not clamped."""
        if self._frames_in_batch:
            frames = z[0].transpose(0, 1)
            out = self._run("decode", frames, Call(options=(("num_frames", len(frames)),))).mean
            return out.transpose(0, 1).unsqueeze(0)
        return self._run("decode", z, Call()).mean

    def decode_to(self, z: Tensor, sink: RowSink) -> None:
        """Decode one picture [1, C, h, w]; its rows go to the sink as they are made."""
        if self.preset.cuda_graphs and z.shape[-1] * z.shape[-2] * self.geometry.spatial**2 <= _RECORDED_PIXELS:
            pixels = self.decode(z)
            sink.keep(0, pixels.shape[-2], pixels).result()
        else:
            self._run("decode", z, Call(), sink)

    @property
    def whole_pixels(self) -> int:
        """Pictures up to here go through the model as one tensor; of larger ones, or where memory was named, floats
        exist for the rows of a strip only."""
        if self.limits.vram is not None:
            return 0
        return _RECORDED_PIXELS if self.preset.cuda_graphs else _WHOLE_PIXELS

    @property
    def goes_by_frames(self) -> bool:
        """Can ``run_frames`` take clips of this model?"""
        return goes_by_frames(self.source.class_name)

    def run_frames(self, side: Side, clip: RowSource, sink: RowSink) -> None:
        """A clip that comes and goes by frames, in memory that does not grow with it.

        clip: [1, 3, T, H, W] for encode, whose sink takes moments (see ``Posterior.from_moments``), or raw latents
        [1, C, t, h, w] for decode, whose sink takes pixels. Each frame is asked for once, or once more with the next
        few; results come in order.
        """
        self._session.compute(Task(side), [clip], Call(), {0: sink})

    def stream(self, side: Side) -> ClipStream | None:
        """A clip chunk by chunk, in memory that does not grow with it; None where the model has no such steps.

        Chunks are [N, 3, T, H, W] for encode (the results are moments, see ``Posterior.from_moments``) and
        [N, C, t, h, w] for decode, of as many frames as the stream's ``cuts`` says.
        """
        return self._session.stream(side)

    def expect(self, side: Side, shape: tuple[int, ...]) -> None:
        """Plan for an input of this shape that comes soon ([N, C, H, W]; of a clip the first chunk's or the whole
        one's), while another thread computes. For every size that waits; costs a few milliseconds once a size."""
        steps = self._session.steps(side) if len(shape) == 5 else None
        self._session.expect(Task(side, step=steps is not None), shape)

    def plan(self, shape: tuple[int, ...], side: Side) -> Plan | ClipPlan:
        """What a job would do with an input of this shape: a clip in steps where there are any. Computes nothing."""
        steps = self._session.steps(side)
        return self.plan_whole(shape, side) if steps is None else self._session.plan_clip(side, shape)

    def plan_whole(self, shape: tuple[int, ...], side: Side) -> Plan:
        """What ``encode`` or ``decode`` would do with an input of this shape. Computes nothing."""
        call = Call()
        if self._frames_in_batch:
            shape = (shape[2], shape[1], *shape[3:])
            call = Call(options=(("num_frames", shape[0]),)) if side == "decode" else call
        picture = self.geometry.temporal is None and not self._frames_in_batch
        by_rows = self.goes_by_frames or (picture and side == "encode")
        example: Tensor | RowSource = Example(shape, self.dtype, self.device)
        if not by_rows:
            example = torch.empty(shape, dtype=self.dtype, device=self.device)
        sinks = {0: ROWS} if self.goes_by_frames or (picture and side == "decode") else {}
        return self._session.plan(Task(side), [example], call, sinks)

    @property
    def _frames_in_batch(self) -> bool:
        family = FAMILIES.get(self.source.class_name)
        return family is not None and family.frames_in_batch

    def _run(self, side: Side, x: Tensor | RowSource, call: Call, sink: RowSink | None = None) -> Posterior:
        """The side's result; pixels come back as the mean of a point, or (an empty one) go to the sink."""
        if isinstance(x, Tensor):
            x = x.to(self.device, self.dtype).contiguous()
        tensors, spec = self._session.compute(Task(side), [x], call, {} if sink is None else {0: sink})
        if sink is not None:
            return Posterior(torch.empty(0), None)
        return posterior_of(spec, tensors) if side == "encode" else Posterior(tensors[0], None)

    def _written(self, side: Side, batch: int, dtype: torch.dtype) -> tuple[Graph, Spec] | None:
        """Of weights that do not fit, none: loading the module says what is wrong with them."""
        graph = None if self._layers is None else kl.graph_of(self._layers, side, batch, dtype)
        if graph is None or not fits_weights(graph, self.source.tensors):
            return None
        return graph, _MOMENTS if side == "encode" else {"tensor": 0}

    def _module(self) -> nn.Module:
        """What graphs are captured from: on the CPU, so that the device holds each weight once, laid out for use."""
        if self._loaded is None:
            self._loaded = load_module(self.source, self.dtype)
        return self._loaded

    def _by_name(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Weights on the device: from the files where their names are the module's, else from the module."""
        missing = [n for n in names if n not in self._stored]
        if missing and self.source.keys_are_current:
            self._stored |= {k: self._cast(t) for k, t in load_weights(self.source, missing).items()}
        missing = [n for n in missing if n not in self._stored]
        if missing:  # buffers that are computed, not stored; weights of older names
            named: dict[str, Any] = dict(self._module().named_parameters(remove_duplicate=False))
            named |= dict(self._module().named_buffers(remove_duplicate=False))
            self._stored |= {n: self._cast(named[n]) for n in missing if n in named}
        return self._stored

    def _cast(self, weight: Tensor) -> Tensor:
        layout = memory_format(weight.ndim, uses_channels_last(self.preset, self.dtype, self.device))
        kind = self.dtype if weight.is_floating_point() else weight.dtype
        return weight.to(self.device, kind).contiguous(memory_format=layout)
