"""The public API: a VAE that runs strip by strip with the numbers of the untiled model, in diffusers' convention."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.budget import Limits, Rows, parse_size
from tvae.pipeline.cap import capped
from tvae.pipeline.captures import Call
from tvae.pipeline.collector import without_collector
from tvae.pipeline.compiled import Compiled, Ready
from tvae.pipeline.engine.plan import Plan
from tvae.pipeline.errors import UsageError
from tvae.pipeline.graph_store import class_source_digest
from tvae.pipeline.hardware import backend_settings, choose_preset, kernels_of
from tvae.pipeline.models.frames import frames_of
from tvae.pipeline.models.reference import Side, skeleton
from tvae.pipeline.outputs import rebuild
from tvae.pipeline.watch import Watch
from tvae.pipeline.weights import PreparedWeights
from tvae.presets import Preset

__all__ = ["TiledVAE"]

_KEPT_RUNS = 8
_BAKED = (bool, int, float, str, type(None))


class TiledVAE(nn.Module):
    """Wraps any module with ``encode(x)`` and ``decode(z)`` and runs both strip by strip.

    It keeps the convention of the wrapped class: ``encode(x).latent_dist`` with ``mean``, ``logvar``, ``sample()`` and
    ``mode()``, ``decode(z).sample``, ``return_dict=False``, extra arguments, and its own output types where there is no
    posterior. Every other attribute is the wrapped model's, parameters included: ``.to()`` moves both. Blended tiling
    of the wrapped model is not used, whatever its switches say.

    vae: the model; its weights are used where they are, in the type they have. A float16 model whose configuration says
    ``force_upcast`` is computed in float32 from its stored weights, and the result returned in float16.
    preset: name of a hardware preset, or ``auto``. strip: height of a strip in latent rows, on both sides; None takes
    the preset's, lower where memory asks for it. vram: memory the process may hold on the device (on a CPU: resident),
    such as ``8GiB``; None takes the preset's share of what is free. What does not fit goes to host memory or disk; a
    budget that cannot hold the work is a PlanError. spill: folder for files of that kind. rows: what strips of a clip
    divide, its ``height`` or its ``time`` (``strip`` counts latent frames then); None for what serves best.
    allow_whole: run operations the engine has no rule for on whole values (exact, not bounded in memory) rather than
    raise UnsupportedOp.
    """

    def __init__(
        self,
        vae: nn.Module,
        preset: str = "auto",
        *,
        strip: int | None = None,
        vram: str | int | None = None,
        spill: str | Path | None = None,
        rows: Rows | None = None,
        allow_whole: bool = False,
    ) -> None:
        super().__init__()
        for side in ("encode", "decode"):
            if not callable(getattr(vae, side, None)):
                raise UsageError(f"{type(vae).__name__} has no {side}(); TiledVAE wraps modules with encode and decode")
        if strip is not None and strip < 1:
            raise UsageError(f"a strip has at least one latent row, not {strip}")
        # sharing the registries makes this the same tree of weights under the same names
        self._parameters, self._buffers, self._modules = vae._parameters, vae._buffers, vae._modules
        self.__dict__["vae"] = vae
        self.training = vae.training
        if rows not in (None, "height", "time"):
            raise UsageError(f"strips divide a clip's height or its time, not its '{rows}'")
        self._preset_name, self._strip, self._rows, self._allow_whole = preset, strip, rows, allow_whole
        self._vram, self._spill = None if vram is None else parse_size(vram), None if spill is None else Path(spill)
        self._sides: dict[Any, tuple[Compiled, PreparedWeights]] = {}
        self._presets: dict[torch.device, Preset] = {}
        self._ready: dict[Any, Ready] = {}
        self._watch: Watch | None = None
        if preset != "auto":
            choose_preset(preset, torch.device("cpu"))  # an unknown name is told now, not at the first call

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["vae"], name)

    def extra_repr(self) -> str:
        """What ``repr`` adds to the wrapped tree."""
        return f"{type(self.vae).__name__}, preset={self._preset_name!r}, strip={self._strip}"

    def encode(self, x: Tensor, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        """x [N, 3, H, W] (video: [N, 3, T, H, W]) in [-1, 1] -> what the wrapped ``encode`` returns.

        Raises UsageError for inputs of another device or type than the model, or that require grad.
        """
        return self._run("encode", x, args, kwargs, return_dict)

    def decode(self, z: Tensor, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        """Latents [N, C, h, w] (video: [N, C, t, h, w]), raw space -> what the wrapped ``decode`` returns.

        ``generator`` seeds the noise of models that inject some; it is drawn whole, as the model draws it.
        Raises UsageError as ``encode`` does.
        """
        return self._run("decode", z, args, kwargs, return_dict)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped class's ``forward``, over this object's ``encode`` and ``decode``."""
        return type(self.vae).forward(self, *args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        for compiled, weights in self._sides.values():  # copies and recordings would hold on to the memory left behind
            compiled.forget()
            weights.forget()
        self._ready.clear()
        return super()._apply(*args, **kwargs)

    def plan(self, shape: tuple[int, ...], side: Side, **kwargs: Any) -> Plan:
        """What a call with an input of this shape would do; ``str()`` of it is a table. Computes nothing."""
        weight = next(iter(self.parameters()))
        example = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        given = _arguments(side, getattr(self.vae, side), example, (), kwargs)
        inputs, call, _, limits, preset = self._prepare(side, example, given)
        settings = backend_settings(preset, inputs[0].dtype, bounded=limits.vram is not None)
        with settings, capped(example.device, limits.vram):  # weights are laid out for it, as they are for a call
            compiled, weights = self._compiled(side, inputs, preset)
            return compiled.plan(inputs, limits, call, weights=weights)

    def _run(self, side: Side, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], return_dict: bool) -> Any:
        for hooked in (self, self.vae):  # accelerate's CPU offload brings the weights to the device here
            hook: Any = hooked.__dict__.get("_hf_hook")
            if hasattr(hook, "pre_forward"):
                hook.pre_forward(hooked)
        self._check(side, x)
        given = _arguments(side, getattr(self.vae, side), x, args, kwargs)
        return_dict = given.get("return_dict", return_dict)
        inputs, call, generator, limits, preset = self._prepare(side, x, given)
        settings = backend_settings(preset, inputs[0].dtype, bounded=limits.vram is not None)
        # what a capture leaves behind is looked through after the first result
        first = nullcontext() if self._ready else without_collector()
        with settings, capped(x.device, limits.vram) as limit, first:
            ready = self._ready_for(side, inputs, call, limits, preset)
            limit()
            tensors, spec = ready.runner.run(inputs, generator), ready.spec
        if inputs[0].dtype != x.dtype:
            tensors = [t.to(x.dtype) if t.is_floating_point() else t for t in tensors]
        value = rebuild(spec, tensors)
        return value if return_dict else _as_tuple(value)

    def _ready_for(self, side: Side, inputs: list[Tensor], call: Call, limits: Limits, preset: Preset) -> Ready:
        """The prepared run; one that was prepared before, while the model is what it was then."""
        if self._watch is None or not self._watch.unchanged():
            self._ready.clear()
            self._watch = Watch(self.vae)
        device = inputs[0].device
        key = (side, tuple((t.shape, t.dtype) for t in inputs), device, call)
        if key not in self._ready or not self._ready[key].serves(limits, device):
            compiled, weights = self._compiled(side, inputs, preset)
            last = preset.memory_layout == "channels_last"
            self._ready[key] = compiled.ready(
                inputs, weights, limits, call, channels_last=last, record=preset.cuda_graphs
            )
            while len(self._ready) > _KEPT_RUNS:
                self._ready.pop(next(iter(self._ready)))
        return self._ready[key]

    def _check(self, side: Side, x: Tensor) -> None:
        weight = next(iter(self.parameters()))
        if torch.is_grad_enabled() and x.requires_grad:
            raise UsageError(f"{side}() runs without gradients: call it on x.detach(), or train with the wrapped model")
        if x.ndim < 4 or 0 in x.shape:
            raise UsageError(
                f"{side}() takes [N, C, H, W] or [N, C, T, H, W] of at least one pixel, not {list(x.shape)}"
            )
        if x.device != weight.device or x.dtype != weight.dtype:
            have, want = f"{x.dtype} on {x.device}", f"{weight.dtype} on {weight.device}"
            raise UsageError(f"{side}() got {have.replace('torch.', '')}, the VAE is {want.replace('torch.', '')}")

    def _prepare(
        self, side: Side, x: Tensor, given: Mapping[str, Any]
    ) -> tuple[list[Tensor], Call, torch.Generator | None, Limits, Preset]:
        generator = given.get("generator")
        tensors = {k: v for k, v in given.items() if isinstance(v, Tensor)}
        options = {k: v for k, v in given.items() if k not in (*tensors, "generator", "return_dict")}
        for name, value in options.items():
            if not isinstance(value, _BAKED):
                raise UsageError(f"{side}(): argument '{name}' is a {type(value).__name__}, which cannot be captured")
        dtype = self._compute_dtype(x.dtype)
        inputs = [t.detach().to(dtype) if t.is_floating_point() else t for t in (x, *tensors.values())]
        preset = self._preset(x.device)
        call = Call(tuple(tensors), tuple(sorted(options.items())))
        strip = self._strip or preset.strip_rows
        limits = Limits(strip, self._strip is not None, self._vram, preset.memory_share, self._spill, self._rows)
        return inputs, call, generator, limits, preset

    def _preset(self, device: torch.device) -> Preset:
        """The preset for a device, chosen once: free memory changes while it is used, and a file takes time to read."""
        if device not in self._presets:
            self._presets[device] = choose_preset(self._preset_name, device)
        return self._presets[device]

    def _compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        forced = _config(self.vae).get("force_upcast", False)
        return torch.float32 if forced and dtype == torch.float16 else dtype

    def _compiled(self, side: Side, inputs: list[Tensor], preset: Preset) -> tuple[Compiled, PreparedWeights]:
        """The compiled side for the model as it is now: one whose structure changed is captured anew."""
        vae, dtype = self.vae, inputs[0].dtype
        stored = next(iter(self.parameters())).dtype
        structure = [(n, list(t.shape)) for n, t in _weights_of(vae).items()]
        processors = [type(p).__name__ for p in getattr(vae, "attn_processors", {}).values()]
        last = preset.memory_layout == "channels_last"
        key = (side, dtype, stored, last, repr(structure), tuple(processors), tuple(preset.levels.items()))
        if key not in self._sides:
            config = _config(vae)
            plain = bool(config) and not _customised(vae)
            facts = {"class": type(vae).__qualname__, "config": config, "weights": structure, "processors": processors}
            self._sides[key] = (
                Compiled(
                    side,
                    lambda: vae if stored == dtype else skeleton(vae, dtype),
                    class_source_digest(type(vae).__module__) if plain else None,
                    facts,
                    kernels_of(preset, bounded=self._vram is not None),
                    allow_whole=self._allow_whole,
                    frames=frames_of(type(vae).__name__, side),
                ),
                PreparedWeights(lambda _names: _weights_of(vae), dtype, last),  # not `self`: no cycle
            )
        return self._sides[key]


def _weights_of(vae: nn.Module) -> dict[str, Tensor]:
    return dict(vae.named_parameters(remove_duplicate=False)) | dict(vae.named_buffers(remove_duplicate=False))


@functools.lru_cache(maxsize=64)
def _signature(function: Any, bound: bool) -> inspect.Signature:
    return inspect.signature(MethodType(function, object()) if bound else function)


def _arguments(side: Side, method: Any, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """By name, all but the first. Raises UsageError where a method behind ``*args`` does not tell their names."""
    bound = hasattr(method, "__self__")  # its function is the same for all models of a class, and lives as long
    signature = _signature(method.__func__ if bound else method, bound)
    found = dict([*signature.bind(x, *args, **kwargs).arguments.items()][1:])
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL and args:
            raise UsageError(f"{side}(): pass all arguments after the first by name")
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


def _config(vae: nn.Module) -> Mapping[str, Any]:
    """The configuration without diffusers' private notes, whose order changes from run to run."""
    config = getattr(vae, "config", None)
    return {k: v for k, v in config.items() if not k.startswith("_")} if isinstance(config, Mapping) else {}


def _customised(vae: nn.Module) -> bool:
    """Hooks can change what a module computes without changing its configuration: no graph on disk stands for it."""
    return any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in vae.modules())


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """diffusers' ``return_dict=False``: the fields of the output that are set."""
    if isinstance(value, tuple):
        return value
    if hasattr(value, "to_tuple"):
        return tuple(value.to_tuple())
    if hasattr(value, "__dataclass_fields__"):
        return tuple(v for v in vars(value).values() if v is not None)
    return (value,)
