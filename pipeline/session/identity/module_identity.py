"""What a live module computes, as a digest, and whether that has changed since.

Two modules of equal digests compute the same function of their weights (by name) and inputs. The digest covers, for
every part of the module: its class and the code that it may run, every attribute, functions and objects held by
attributes, hooks, patched methods, parametrisations, and types, shapes and strides of its tensors: not their values,
not where they lie. It does not cover what changes no result without gradients (state-dict hooks; ``training`` flags,
unless the model's own code mentions them), nor what accelerate puts into a model to move it. Writes to weights through
``.data`` or NumPy are not seen: their checksums are (see ``weights``). Nor are those to constants on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection

import torch
from torch import nn

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.reference import BLENDED
from tvae.pipeline.session.identity import library
from tvae.pipeline.session.identity.sources import closure_digests
from tvae.pipeline.session.identity.walk import Walk

__all__ = ["Identity", "identity_of"]


class Identity:
    """digest: see the module's docstring. numbers: it covers the values of weights of one number, too. portable: it is
    the same in every process. why: the reason if it is not.

    What cannot be digested is named by its id. Such a digest is valid for that very object and as long as this identity
    exists; nothing may be saved under it.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str], *, numbers: bool = False) -> None:
        self.numbers = numbers
        parts = module.named_modules()
        self._trained = {name: type(part).__name__ for name, part in parts if part.training and _learns(part)}
        weights = [*module.named_parameters(), *module.named_buffers()]
        self._sparse = {name: weight.layout for name, weight in weights if weight.layout is not torch.strided}
        walk = Walk(module, ignored, numbers=numbers)
        walk.run()
        self.why = walk.why
        self.portable = not self.why
        self._watch, self._held = walk.watch, walk.held
        sources = closure_digests(frozenset(walk.reach.sources))
        walk.close()
        doc = [library.versions(), sources, None if self.portable else os.getpid()]
        text = "\n".join([json.dumps(doc, sort_keys=True), *walk.lines])
        self.digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()

    def unchanged(self) -> bool:
        """True while nothing that the digest covers has changed, nor a weight been written to; quick."""
        return self._watch.unchanged()

    def evaluated(self) -> Identity:
        """Itself. Raises UsageError for a module with a layer in training that behaves otherwise then, or with weights
        that are not dense."""
        for name, kind in self._trained.items():
            raise UsageError(f"{kind} '{name}' is in training, in which its results differ: call eval() on the VAE")
        for name, layout in self._sparse.items():
            raise UsageError(
                f"the VAE's '{name}' is {layout}, and tvae computes with dense weights: call to_dense() on it"
            )
        return self


def _learns(part: nn.Module) -> bool:
    """Does a layer of PyTorch's give other results in training?"""
    if isinstance(part, nn.modules.dropout._DropoutNd | nn.AlphaDropout | nn.FeatureAlphaDropout):
        return part.p > 0
    if any(type(hook).__name__ == "SpectralNorm" for hook in part._forward_pre_hooks.values()):
        return True  # each call brings it nearer to the weight's norm
    statistics = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
    return statistics or isinstance(part, nn.RReLU) or type(part).__name__ == "_SpectralNorm"


def identity_of(module: nn.Module, ignored: Collection[str] = BLENDED, *, numbers: bool = False) -> Identity:
    """What the module computes, now. ignored: attributes of the module itself that do not matter. numbers: so do the
    values of weights of one number."""
    return Identity(module, ignored, numbers=numbers)
