"""The public API: a VAE that runs strip by strip with the numbers of the untiled model, in diffusers' convention."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.device import choose_preset
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.errors import UsageError
from tvae.pipeline.memory.limits import Limits, Rows, parse_size
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.outputs import clip_output
from tvae.pipeline.models.recognise import family_of
from tvae.pipeline.models.reference import BLENDED, skeleton
from tvae.pipeline.session.call_arguments import arguments_of, as_tuple, has_own_tuple
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.graph_cache import fits_weights
from tvae.pipeline.session.identity.module_identity import Identity, identity_of
from tvae.pipeline.session.outputs.spec import resolvable
from tvae.pipeline.session.outputs.taken_apart import rebuild
from tvae.pipeline.session.session import Session, Subject
from tvae.pipeline.settings.modes import plain_modes
from tvae.presets import Preset

__all__ = ["TiledVAE"]

_KEPT_SESSIONS = 4
"""Of models that this one has been: adapters on and off, one type and another."""
_BAKED = (bool, int, float, str, type(None))
_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_ONE_LOCK_EACH = threading.Lock()
_log = logging.getLogger("tvae")


class TiledVAE(nn.Module):
    """Wraps any module with ``encode(x)`` and ``decode(z)`` and runs both strip by strip.

    It keeps the convention of the wrapped class: ``encode(x).latent_dist`` with ``mean``, ``logvar``, ``sample()`` and
    ``mode()``, ``decode(z).sample``, ``return_dict=False``, extra arguments, and its own output types. Every other
    attribute is the wrapped model's, parameters included: ``.to()`` moves both. Blended tiling of the wrapped model is
    not used, whatever its switches say. Clips of video VAEs that work in steps go through it step by step.

    Every call computes with the model as it is then: changed weights, layers, hooks, methods and settings are seen.
    ``refresh`` is for what nothing can see. Calls from several threads take turns; a model that changes during a call
    is the caller's matter. Copies and pickles hold the model and these settings, and begin afresh.

    vae: the model; its weights are used where they are, in the type they have. A float16 model whose configuration says
    ``force_upcast`` is computed in float32 from its stored weights, and the result returned in float16.
    preset: name of a hardware preset, or ``auto``. strip: height of a strip in latent rows, on both sides; None takes
    the preset's, lower where memory asks for it. vram: memory the process may hold on the device (on a CPU: resident),
    such as ``8GiB``; None takes the preset's share of what is free. What does not fit goes to host memory or disk; a
    budget that cannot hold the work is a PlanError. spill: folder for files of that kind. rows: what strips of a clip
    divide, its ``height`` or its ``time`` (``strip`` counts latent frames then); None for what serves best.
    allow_whole: run operations the engine has no rule for on whole values, and models of which nothing can be cut as
    they are (exact, in more memory, which the plan counts) rather than raise UnsupportedOp.
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
        if rows not in (None, "height", "time"):
            raise UsageError(f"strips divide a clip's height or its time, not its '{rows}'")
        # sharing the registries makes this the same tree of weights under the same names
        self._parameters, self._buffers, self._modules = vae._parameters, vae._buffers, vae._modules
        self.__dict__["vae"] = vae
        self.training = vae.training
        self._preset_name, self._strip, self._rows, self._allow_whole = preset, strip, rows, allow_whole
        self._vram, self._spill = None if vram is None else parse_size(vram), None if spill is None else Path(spill)
        self._presets: dict[torch.device, Preset] = {}
        self._identity: Identity | None = None
        self._sessions: OrderedDict[Any, Session] = OrderedDict()
        self._told_of_tiling = False
        if preset != "auto":
            choose_preset(preset, torch.device("cpu"))  # an unknown name is told now, not at the first call

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["vae"], name)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"strip": self._strip, "vram": self._vram, "spill": self._spill, "rows": self._rows}
        return _wrapped, (self.vae, self._preset_name, {**options, "allow_whole": self._allow_whole})

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

    def refresh(self) -> None:
        """Forget all that is known of the model: for a change that cannot be seen from outside, such as of a value that
        its code looks up in a file, or of a foreign library's state."""
        with self._lock:
            self._forget()
            self._identity = None
            self._sessions.clear()

    def plan(self, shape: tuple[int, ...], side: Side, **kwargs: Any) -> Plan | ClipPlan:
        """What a call with an input of this shape would do; ``str()`` of it is a table. Computes nothing."""
        with self._lock:
            weight = next(iter(self.parameters()))
            example = torch.empty(shape, dtype=weight.dtype, device="meta")
            given = arguments_of(side, getattr(self.vae, side), example, (), kwargs)
            given.pop("return_dict", None)
            tensors, call, _ = _taken_apart(side, given)
            with plain_modes(weight.device):
                session = self._session(weight.device, self._compute_dtype(weight.dtype))
                if self._in_steps(session, side, call, len(shape)):
                    return session.plan_clip(side, tuple(shape), whole=True)
                first = torch.empty((), dtype=session.dtype, device=weight.device).expand(shape)  # takes no memory
                return session.plan(side, [first, *tensors], call, {})

    def _run(self, side: Side, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], return_dict: bool) -> Any:
        with self._lock:
            for hooked in (self, self.vae):  # accelerate's CPU offload brings the weights to the device here
                hook: Any = hooked.__dict__.get("_hf_hook")
                if hasattr(hook, "pre_forward"):
                    hook.pre_forward(hooked)
            self._check(side, x)
            given = arguments_of(side, getattr(self.vae, side), x, args, kwargs)
            return_dict = given.pop("return_dict", return_dict)
            own_tuple = not return_dict and has_own_tuple(getattr(self.vae, side))
            if own_tuple:
                given["return_dict"] = False
            more, call, generator = _taken_apart(side, given)
            dtype = self._compute_dtype(x.dtype)
            with plain_modes(x.device):
                inputs = [t.detach().to(dtype) if t.is_floating_point() else t for t in (x, *more)]
                session = self._session(x.device, dtype)
                if self._in_steps(session, side, call, x.ndim):
                    value = clip_output(side, session.clip(side, inputs[0]).to(x.dtype))
                else:
                    tensors, spec = session.compute(side, inputs, call, generator=generator)
                    if dtype != x.dtype:
                        tensors = [t.to(x.dtype) if t.is_floating_point() else t for t in tensors]
                    value = rebuild(spec, tensors)
            return value if return_dict or own_tuple else as_tuple(value)

    @property
    def _lock(self) -> threading.RLock:
        """Of the wrapped module: while it is captured, its weights are the exporter's."""
        with _ONE_LOCK_EACH:
            return _LOCKS.setdefault(self.vae, threading.RLock())

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._forget()  # copies and recordings would hold on to the memory left behind
            return super()._apply(*args, **kwargs)

    def _forget(self) -> None:
        for session in self._sessions.values():
            session.forget()

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
        if not self._told_of_tiling and any(getattr(self.vae, name, False) is True for name in BLENDED):
            self._told_of_tiling = True
            _log.warning("the VAE's own tiling is switched on and not used: strips need no blending")

    def _in_steps(self, session: Session, side: Side, call: Call, dims: int) -> bool:
        """Does a clip go through this side step by step?"""
        return dims == 5 and call == Call() and session.steps(side) is not None

    def _session(self, device: torch.device, dtype: torch.dtype) -> Session:
        """The one for the model as it is now."""
        if self._identity is None or not self._identity.unchanged():
            self._forget()
            self._identity = identity_of(self.vae)
        identity = self._identity
        stored = next(iter(self.parameters())).dtype
        key = (identity.digest, device, dtype, stored)
        if key not in self._sessions:
            vae, this = self.vae, weakref.ref(self)  # not self: no cycle
            family = family_of(vae)
            subject = Subject(
                family,
                identity.digest if identity.portable else None,
                lambda: skeleton(vae, dtype) if stored != dtype or _made_for_inference(vae) else vae,
                lambda _names: _weights_of(vae),
                borrowed=True,
                geometry=lambda: FAMILIES[str(family)].geometry(_config(vae)),
                fits=lambda graph, spec: resolvable(spec) and fits_weights(graph, _weights_of(vae)),
                still=lambda: (it := this()) is None or it._identity is None or it._identity.unchanged(),
                lock=self._lock,
            )
            preset = self._preset(device)
            strip = self._strip or preset.strip_rows
            limits = Limits(strip, self._strip is not None, self._vram, preset.memory_share, self._spill, self._rows)
            self._sessions[key] = Session(subject, preset, dtype, device, limits, allow_whole=self._allow_whole)
        self._sessions.move_to_end(key)
        while len(self._sessions) > _KEPT_SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[key]

    def _preset(self, device: torch.device) -> Preset:
        """The preset for a device, chosen once: free memory changes while it is used, and a file takes time to read."""
        if device not in self._presets:
            self._presets[device] = choose_preset(self._preset_name, device)
        return self._presets[device]

    def _compute_dtype(self, dtype: torch.dtype) -> torch.dtype:
        forced = _config(self.vae).get("force_upcast", False)
        return torch.float32 if forced and dtype == torch.float16 else dtype


def _wrapped(vae: nn.Module, preset: str, options: dict[str, Any]) -> TiledVAE:
    """What copies and pickles are made by."""
    return TiledVAE(vae, preset, **options)


def _taken_apart(side: Side, given: Mapping[str, Any]) -> tuple[list[Tensor], Call, torch.Generator | None]:
    """The arguments after the first: tensors, what a capture bakes in, and the generator. Raises UsageError."""
    tensors = {k: v for k, v in given.items() if isinstance(v, Tensor)}
    options = {k: v for k, v in given.items() if k not in (*tensors, "generator")}
    for name, value in options.items():
        if not isinstance(value, _BAKED):
            raise UsageError(f"{side}(): argument '{name}' is a {type(value).__name__}, which cannot be captured")
    return [*tensors.values()], Call(tuple(tensors), tuple(sorted(options.items()))), given.get("generator")


def _weights_of(vae: nn.Module) -> dict[str, Tensor]:
    return dict(vae.named_parameters(remove_duplicate=False)) | dict(vae.named_buffers(remove_duplicate=False))


def _made_for_inference(vae: nn.Module) -> bool:
    """Has it weights that were made in inference mode? The exporter takes none."""
    return any(t.is_inference() for t in (*vae.parameters(), *vae.buffers()))


def _config(vae: nn.Module) -> Mapping[str, Any]:
    config = getattr(vae, "config", None)
    return config if isinstance(config, Mapping) else {}
