"""The fused operations, each at up to five levels. Level 1 (``native``) is the definition of each result; faster levels
are judged against it. The files of ``operations`` say what each operation is, and why a level has none of it."""

from typing import TYPE_CHECKING, Any

from tvae.kernels.levels import LEVELS, check_levels
from tvae.kernels.operations import OPERATIONS

if TYPE_CHECKING:
    from tvae.kernels.registry import Kernels, Unsupported, implementation, why_absent, why_missing

__all__ = ["LEVELS", "OPERATIONS", "Kernels", "Unsupported"]
__all__ += ["check_levels", "implementation", "why_absent", "why_missing"]


def __getattr__(name: str) -> Any:
    # torch takes a second to import, and commands that show a preset do without
    if name in __all__:
        from tvae.kernels import registry

        return getattr(registry, name)
    raise AttributeError(f"module 'tvae.kernels' has no attribute {name!r}")
