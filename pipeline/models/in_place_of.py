"""A module that takes another one's place, also for libraries that ask for its class."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["InPlaceOf", "made_again"]

_NOT_COPIED = {"forward", "_hf_hook", "_old_forward", "_compiled_call_impl"}
"""What hooks and compilers put on one object."""


class InPlaceOf(nn.Module):
    """It has the other's parameters, submodules and attributes. To who asks an object for its class, and not for its
    type, it is of the other's: diffusers' pipelines save parts of the classes that they know, under those names."""

    def __init__(self, vae: nn.Module) -> None:
        """vae: the module whose place this one takes."""
        super().__init__()
        # sharing the registries makes this the same tree of weights under the same names
        self._parameters, self._buffers, self._modules = vae._parameters, vae._buffers, vae._modules
        self.__dict__ |= {"vae": vae, "__module__": type(vae).__module__}
        self.training = vae.training

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        vae = self.__dict__.get("vae")
        return type(self) if vae is None else vae.__class__

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["vae"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is set of the other's attributes is set there; ``training`` in both."""
        vae = self.__dict__.get("vae")
        of_other = vae is not None and not name.startswith("_") and not hasattr(type(self), name) and hasattr(vae, name)
        if of_other:
            setattr(vae, name, value)
        if not of_other or name in self.__dict__:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """The other's attributes go from the other. accelerate takes its hooks off so: what has the hook gets back the
        ``forward`` that it had before."""
        vae = self.__dict__["vae"]
        if name in self.__dict__ or not hasattr(vae, name):
            super().__delattr__(name)
            return
        if name == "_hf_hook" and "_old_forward" in vae.__dict__:
            vae.forward = vae.__dict__.pop("_old_forward")
        delattr(vae, name)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return self.__reduce__()  # Python would look for that in the other's class

    def added(self, own: frozenset[str]) -> dict[str, Any] | None:
        """The attributes that this object has beside its own ones: a subclass's, and those that somebody set."""
        return {name: held for name, held in vars(self).items() if name not in own | _NOT_COPIED} or None

    def _get_name(self) -> str:
        return type(self).__name__


def made_again(kind: type[InPlaceOf], base: type[InPlaceOf], *args: Any, **options: Any) -> InPlaceOf:
    """One of a class, made as a base class makes its own: ``__init__`` of a subclass may take other arguments."""
    new = kind.__new__(kind)
    base.__init__(new, *args, **options)
    return new
