"""The public API: a VAE that runs strip by strip with the numbers of the untiled model, in diffusers' convention."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.device import choose_preset
from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.errors import UsageError
from tvae.pipeline.memory.amount import parse_size
from tvae.pipeline.memory.limits import Limits, Rows
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.in_place_of import InPlaceOf, made_again
from tvae.pipeline.models.outputs import clip_output
from tvae.pipeline.models.recognise import family_of
from tvae.pipeline.models.reference import BLENDED, skeleton
from tvae.pipeline.session.call_arguments import arguments_of, as_tuple, has_own_tuple, tensors_and_options
from tvae.pipeline.session.callers_module import (
    bring_weights,
    check_hooks,
    check_input,
    checked_module,
    compute_dtype,
    config_of,
    input_at_fault,
    lock_of,
    planned_input,
    typical_weight,
)
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.devices_of_call import DeviceName, devices_of_call
from tvae.pipeline.session.graph_cache import fits_weights
from tvae.pipeline.session.identity.identity import Identity
from tvae.pipeline.session.numbers_read import NumbersRead, numbers_covered
from tvae.pipeline.session.outputs import is_known, rebuild
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.planned_call import in_steps, planned_call
from tvae.pipeline.session.session import Session, Task
from tvae.pipeline.session.several_devices import SeveralDevices
from tvae.pipeline.session.subject import Subject
from tvae.pipeline.session.turns import Turns
from tvae.pipeline.session.uncompiled import uncompiled
from tvae.pipeline.session.weights import made_for_inference, weights_of
from tvae.pipeline.settings.modes import of_the_process, plain_modes
from tvae.presets import Preset

__all__ = ["TiledVAE"]

_KEPT_SESSIONS = 4  # of models that this one has been: adapters on and off, one type and another
_log = logging.getLogger("tvae")


class TiledVAE(InPlaceOf):
    """Runs ``encode`` and ``decode`` of any VAE module strip by strip, with the numbers of the untiled model.

    It takes the place of the wrapped model and keeps its output types: ``encode(x).latent_dist`` with ``mean``,
    ``logvar``, ``sample()`` and ``mode()``, ``decode(z).sample``, ``return_dict=False``, extra arguments. Every other
    attribute is the wrapped model's, parameters included, so ``.to()`` moves both. Its own tiling is not used. A video
    VAE that works in chunks gets a clip chunk by chunk.

    Every call uses the model as it is then, with changed weights, layers, hooks, methods and settings; ``refresh`` is
    for changes that cannot be seen. ``torch.autocast`` around a call only lets it take inputs of other floating types:
    it computes in that of the weights. Calls from several threads take turns. Do not change the model during a call.
    Copies and pickles hold the model and these settings but no group, and start with nothing cached.
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
        devices: Sequence[DeviceName] | None = None,
        group: torch.distributed.ProcessGroup | None = None,
        gather: bool = True,
    ) -> None:
        """Wrap a model. Nothing is captured or computed before the first call.

        - vae: a module with ``encode`` and ``decode``; of a TiledVAE, the one that it wraps. Its weights stay where and
          as they are. A float16 one with ``force_upcast`` in its configuration computes in float32, returns float16.
        - preset: name of a hardware preset, path of a ``.toml`` file, or ``auto``.
        - strip: height of a strip in latent rows, at least 1. None: the preset's, lower where memory is short.
        - vram: memory that the process may hold on the device (on a CPU: resident), in bytes or as text such as
          ``8GiB``. None: the preset's share of what is free. What does not fit goes to host memory, then to disk.
        - spill: folder for what goes to disk. None: the system's folder for temporary files.
        - rows: cut clips along ``height`` or ``time`` (``strip`` then counts latent frames). None: chosen by the plan.
        - allow_whole: run operations that cannot be cut on whole values (exact, in more memory) instead of refusing.
        - devices: share each call by rows, such as ``["cuda:0", "cuda:1"]``. The model, inputs and results are on the
          first of them; the others get copies of the weights. It pays from about 4096x4096 pixels on, frames included.
        - group: processes of ``torch.distributed`` that share each call, all with the same input, one device each.
        - gather: each process of a group gets the whole result, else its own rows of it, in the order of the ranks.

        Raises UsageError for a module without both sides or released with tiles, an unknown preset, a wrong value.
        """
        vae = checked_module(vae.vae if isinstance(vae, TiledVAE) else vae)
        if strip is not None and strip < 1:
            raise UsageError(f"a strip has at least one latent row, not {strip}")
        if rows not in (None, "height", "time"):
            raise UsageError(f"rows must be 'height' or 'time', not '{rows}'")
        if group is not None and devices is not None:
            raise UsageError("devices and group cannot be used together: each process of a group has one device")
        if group is None and not gather:
            raise UsageError("gather=False is for the processes of a group; pass group, too")
        super().__init__(vae)
        self._preset_name, self._strip, self._rows = preset, strip, rows
        self._vram, self._spill = None if vram is None else parse_size(vram), None if spill is None else Path(spill)
        self._allow_whole, self._devices = allow_whole, () if devices is None else devices_of_call(devices)
        self._peers = None if group is None else Peers(group, gather=gather)
        self._presets: dict[torch.device, Preset] = {}
        self._identity: Identity | None = None
        self._refreshed = False
        self._named: dict[str, Tensor] | None = None
        self._sessions: OrderedDict[Any, Session | SeveralDevices] = OrderedDict()
        self._told_of_tiling, self._numbers = False, NumbersRead()
        self._own = frozenset([*vars(self), "_own"])
        if preset != "auto":
            choose_preset(preset, torch.device("cpu"))  # an unknown name is told now, not at the first call

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"strip": self._strip, "vram": self._vram, "spill": self._spill, "rows": self._rows}
        options |= {"allow_whole": self._allow_whole, "devices": self._devices or None}
        new = partial(made_again, type(self), TiledVAE, **options)
        return new, (self.vae, self._preset_name), self.added(self._own)

    def extra_repr(self) -> str:
        """What ``repr`` adds to the wrapped tree."""
        return f"{type(self.vae).__name__}, preset={self._preset_name!r}, strip={self._strip}"

    def encode(self, x: Tensor, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        """Pictures or clips to latents.

        x: [N, C, H, W], for video VAEs [N, C, T, H, W], in [-1, 1], on the model's device and in its type. Sizes are
        those that the model itself takes. ``return_dict=False``: a tuple. Other arguments go to the wrapped ``encode``.
        Returns what the wrapped ``encode`` returns, in raw space (not scaled for a diffusion model).

        Raises UsageError for an input of another device, type or rank, or one that requires grad; PlanError if no plan
        fits into memory; UnsupportedOp if the model has an operation that cannot be cut.
        """
        return self._run("encode", x, args, kwargs, return_dict)

    def decode(self, z: Tensor, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        """Latents to pictures or clips.

        z: [N, C, h, w], for video VAEs [N, C, t, h, w], in raw space (``latents / scaling_factor`` for most models).
        ``generator`` seeds the noise of models that add some. Other arguments go to the wrapped ``decode``.
        Returns what that returns, with values around [-1, 1]. Raises as ``encode`` does.
        """
        return self._run("decode", z, args, kwargs, return_dict)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped class's ``forward``, which calls ``encode`` and ``decode`` of this object."""
        return type(self.vae).forward(self, *args, **kwargs)

    def refresh(self) -> None:
        """Forget the model, after a change that calls do not see: in a patched function, a global, or a file.

        Graphs on disk may be of the model before such a change: this object no longer reads or writes any.
        """
        with self._lock:
            self.release()
            self._identity, self._refreshed = None, True
            self._sessions.clear()

    def release(self) -> None:
        """Let go of what calls keep on the device: weights in another layout, recordings. The next makes them again."""
        with self._lock:
            self._named = None
            for session in self._sessions.values():
                session.forget()

    @uncompiled
    def plan(self, shape: tuple[int, ...], side: Side, **kwargs: Any) -> Plan | ClipPlan:
        """What a call with an input of this shape would do. Computes nothing.

        shape: that of ``x`` or ``z``. side: ``encode`` or ``decode``. Other arguments: those of the call.
        The result has ``peak_bytes`` (without weights), ``weight_bytes``, ``host_bytes``, ``disk_bytes``,
        ``least_budget`` (the smallest ``vram`` that works, in bytes), ``seconds`` (an estimate), ``bound`` (what takes
        most of that time) and ``to_json()``. ``print`` shows it as a table. Raises as the call itself would.
        """
        with self._lock, nullcontext() if self._peers is None else self._peers.call(of_all=False):
            device, example = typical_weight(self.vae).device, planned_input(side, shape, self.vae, self._devices)
            given = arguments_of(side, getattr(self.vae, side), example, (), kwargs)
            given.pop("return_dict", None)
            tensors, call, _ = tensors_and_options(side, given)
            with plain_modes(device), input_at_fault(side, example, self.vae):
                dtype, what = compute_dtype(self.vae, example.dtype), (side, example.shape, tensors, call, device)
                return self._numbers.attempt(self.vae, lambda: planned_call(self._session(device, dtype), *what))

    @uncompiled
    def _run(self, side: Side, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], return_dict: bool) -> Any:
        with self._lock, nullcontext() if self._peers is None else self._peers.call():
            bring_weights(self, self.vae)
            self._check(side, x)
            given = arguments_of(side, getattr(self.vae, side), x, args, kwargs)
            return_dict = given.pop("return_dict", return_dict)
            if own_tuple := not return_dict and has_own_tuple(getattr(self.vae, side)):
                given["return_dict"] = False
            more, call, generator = tensors_and_options(side, given)
            dtype = compute_dtype(self.vae, typical_weight(self.vae, x.dtype).dtype)
            with plain_modes(x.device), input_at_fault(side, x, self.vae):
                inputs = [t.detach().to(dtype) if t.is_floating_point() else t for t in (x, *more)]
                value = self._numbers.attempt(self.vae, lambda: self._computed(side, inputs, call, generator, x.dtype))
            return value if return_dict or own_tuple else as_tuple(value)

    @property
    def _lock(self) -> Turns:
        return lock_of(self.vae)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.release()  # copies and recordings would hold on to the memory left behind
            return super()._apply(*args, **kwargs)

    def _check(self, side: Side, x: Tensor) -> None:
        check_input(side, x, self.vae, self._devices)
        if not self._told_of_tiling and any(getattr(self.vae, name, False) is True for name in BLENDED):
            self._told_of_tiling = True
            _log.warning("the VAE's own tiling is switched on and not used: strips need no blending")

    def _computed(
        self, side: Side, inputs: list[Tensor], call: Call, generator: torch.Generator | None, dtype: torch.dtype
    ) -> Any:
        """What the model returns, in the type of the caller's input."""
        identity, device, found = self._identity, inputs[0].device, None
        if identity is not None and (known := self._sessions.get(self._key(identity, device, inputs[0].dtype))):
            found = known.begun(Task(side), inputs, call)
        if found is None:
            session = self._session(device, inputs[0].dtype)
            with session.same_call(Task(side), inputs, call):
                if in_steps(session, side, call, inputs[0].ndim):
                    return clip_output(side, session.clip(side, inputs[0]).to(dtype))
                found = session.compute(Task(side), inputs, call, generator=generator)
        tensors, spec = found
        if inputs[0].dtype != dtype:
            tensors = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
        return rebuild(spec, tensors)

    def _key(self, identity: Identity, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
        return of_the_process(), identity.digest, device, dtype, typical_weight(self.vae, dtype).dtype

    def _session(self, device: torch.device, dtype: torch.dtype) -> Session | SeveralDevices:
        """The one for the model as it is now."""
        identity = self._identity = self._numbers.identity(self.vae, self._identity, self.release)
        key = self._key(identity, device, dtype)
        if key not in self._sessions:
            check_hooks(self.vae)
            own = key[-1] == dtype
            vae, this, family = self.vae, weakref.ref(self), family_of(self.vae)  # not self: no cycle
            subject = Subject(
                family,
                identity.digest if identity.portable and not self._refreshed else None,
                lambda: vae if own and not made_for_inference(vae) else skeleton(vae, None if own else dtype),
                lambda _names: weights_of(vae) if (it := this()) is None else it._weights(),
                borrowed=True,
                own_types=own,
                geometry=lambda: FAMILIES[str(family)].geometry(config_of(vae)),
                setting=lambda name: getattr(vae, name, None),
                fits=lambda graph, spec: is_known(spec) and fits_weights(graph, weights_of(vae)),
                still=lambda: (it := this()) is None or it._identity is None or it._identity.unchanged(),
                lock=self._lock,
                numbers=partial(numbers_covered, vae, identity.scalars),
            )
            preset = self._preset(device)
            strip, fixed, share = self._strip or preset.strip_rows, self._strip is not None, preset.memory_share
            limits = Limits(strip, fixed, self._vram, share, self._spill, self._rows)
            more: dict[str, Any] = {"allow_whole": self._allow_whole}
            if len(self._devices) > 1:
                self._sessions[key] = SeveralDevices(subject, preset, dtype, self._devices, limits, **more)
            else:
                self._sessions[key] = Session(subject, preset, dtype, device, limits, peers=self._peers, **more)
        self._sessions.move_to_end(key)
        while len(self._sessions) > _KEPT_SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[key]

    def _weights(self) -> dict[str, Tensor]:
        """By name, as of the last look at the model's identity."""
        if self._named is None:
            self._named = weights_of(self.vae)
        return self._named

    def _preset(self, device: torch.device) -> Preset:
        """The preset for a device, chosen once: free memory changes while it is used, and a file takes time to read."""
        if device not in self._presets:
            self._presets[device] = choose_preset(self._preset_name, device)
        return self._presets[device]
