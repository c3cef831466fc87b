"""A launch that comes again and again for tensors of the same layouts: all but where they lie is worked out once.

On a slow host Python takes longer to start the hundred kernels of a picture than a fast GPU takes to compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tvae.kernels import current
from tvae.kernels.prebuild import asked
from tvae.kernels.triton.launch import compiled, launch

__all__ = ["Repeated"]


class Repeated:
    """kernel[grid](*tensors, *numbers, **options) on a device, for any tensors of one shape and layout.

    options: compile-time values. boxes: of the first tensors, which the kernel takes as descriptors, the blocks that it
    copies at a time.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: tuple[float, ...],
        options: Mapping[str, Any],
        device: torch.device,
        boxes: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self._kernel, self._grid, self._numbers, self._options = kernel, grid, numbers, dict(options)
        self._boxes = [[*box] for box in boxes]
        self._index = device.index  # None for Triton's interpreter
        self._runs: dict[Hashable, Callable[..., None]] = {}
        self._rest: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor) -> None:
        """Launch, or ask for the kernel in a rehearsal (see ``launch``)."""
        if self._index is None or current.device() == self._index:
            self._launch(tensors)
        else:  # Triton launches on the current device
            with torch.cuda.device(self._index):
                self._launch(tensors)

    def _launch(self, tensors: tuple[Tensor, ...]) -> None:
        given = self._described(tensors) if self._boxes else tensors
        if asked() is None:
            seen = tuple([(t.dtype, t.data_ptr() % 16 == 0) for t in tensors])
            run = self._runs.get(seen) or self._found(seen, given)
            if run is not None:
                run(current.stream(self._index), *given, *self._rest)
                return
        launch(self._kernel, self._grid, *given, *self._numbers, **self._options)

    def _described(self, tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        boxed = [TensorDescriptor.from_tensor(t, box) for t, box in zip(tensors, self._boxes, strict=False)]
        return *boxed, *tensors[len(boxed) :]

    def _found(self, seen: Hashable, given: tuple[Any, ...]) -> Callable[..., None] | None:
        """What starts the compiled kernel, once there is one."""
        args = *given, *self._numbers
        run = compiled(self._kernel, self._grid, args, self._options)
        if run is not None:
            self._rest = *self._numbers, *(self._options[name] for name in self._kernel.arg_names[len(args) :])
            self._runs[seen] = run
        return run
