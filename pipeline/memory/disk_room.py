"""Is there room on the disk for buffers that memory is too small for?"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import gettempdir

from tvae.pipeline.engine.plan.report import size_text
from tvae.pipeline.errors import PlanError

__all__ = ["disk_room"]


def disk_room(needed: int, spill: Path | None, what: str) -> tuple[Path, int]:
    """The folder that buffers go to, and how many bytes are free there. spill: the folder that was named. what: needs
    so many bytes there. Raises PlanError where there is no room. A folder that is not there is told by who writes."""
    folder = Path(spill or gettempdir())
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return folder, 0
    if needed > free:
        raise PlanError(
            f"{what} needs {size_text(needed)} on disk, and {folder} has {size_text(free)} free; name another folder "
            "with --spill, or more memory with --vram"
        )
    return folder, free
