"""Latents that other programs wrote: samplers, trainers, ComfyUI. They do not say which VAE or space they are of."""

from __future__ import annotations

from tvae.pipeline.latents.foreign.reader import ForeignLatents, foreign_latents, foreign_meta, open_foreign
from tvae.pipeline.latents.foreign.shapes import Wanted
from tvae.pipeline.latents.foreign.specs import specs_in
from tvae.pipeline.latents.foreign.tensors import SUFFIXES, tensors_in
from tvae.pipeline.latents.foreign.write import WRITTEN, write_foreign

__all__ = [
    "SUFFIXES",
    "WRITTEN",
    "ForeignLatents",
    "Wanted",
    "foreign_latents",
    "foreign_meta",
    "open_foreign",
    "specs_in",
    "tensors_in",
    "write_foreign",
]
