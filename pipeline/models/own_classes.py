"""The autoencoders that are modules of ours, not of diffusers."""

from __future__ import annotations

from torch import nn

__all__ = ["class_named"]


def class_named(name: str) -> type[nn.Module] | None:
    """Of ours, else of diffusers, which is imported for it; None where neither has it."""
    from tvae.pipeline.models import seedvr2, taehv, taesd

    for package in (seedvr2, taehv, taesd):
        if name in package.__all__:
            own: type[nn.Module] = getattr(package, name)
            return own
    from diffusers.models import autoencoders

    found: type[nn.Module] | None = getattr(autoencoders, name, None)
    return found
