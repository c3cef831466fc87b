"""What the exporter leaves behind: PyTorch keeps the symbols of exports in a cache of the process, and with them the
stand-ins of tensors and the whole program. The stand-ins know a model's weights by weak references.
``torch.utils.swap_tensors`` refuses tensors that have one, and with it ``load_state_dict`` and ``to`` where
``torch.__future__.set_swap_module_params_on_conversion`` is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["Exports"]


class Exports:
    """Those of one capture."""

    def __init__(self) -> None:
        self._modes: list[Any] = []

    def note(self, inputs: Sequence[Tensor]) -> None:
        """inputs: the stand-ins that an export calls the model with."""
        from torch._guards import detect_fake_mode

        self._modes.append(detect_fake_mode(list(inputs)))

    def let_go(self) -> None:
        """Of all. The exports are over, and their programs are read. What a release of PyTorch does not have is left
        out."""
        for mode in self._modes:
            if (environment := getattr(mode, "shape_env", None)) is not None:
                environment.tracked_fakes = []
            converter = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
            for name in ("lookup_tensor", "lookup_storage"):
                getattr(getattr(converter, "describer", None), name, {}).clear()
        self._modes.clear()
