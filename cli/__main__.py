"""The program: ``tvae``, or ``python -m tvae.cli`` where no console script is on the path."""

from tvae.cli.app import main
from tvae.pipeline.settings.leaving import leaving


def program() -> None:
    """A command, and then the end of the process."""
    with leaving():
        main()


if __name__ == "__main__":
    program()
