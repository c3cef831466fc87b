"""``python -m tvae.pipeline.jobs.devices``: the process of a device (see ``worker``).

It starts the GPU's driver while it imports all else. Which device it will have is not known yet.
"""

from __future__ import annotations

from tvae.pipeline.settings.early_cuda import begin_cuda
from tvae.pipeline.settings.leaving import leaving


def main() -> None:
    """Until everything is done, or stdin ends."""
    with leaving():
        begin_cuda(None, driver_alone=True)

        from tvae.pipeline.jobs.devices.worker import main as work

        work()


if __name__ == "__main__":
    main()
