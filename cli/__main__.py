"""The program: ``tvae``, or ``python -m tvae.cli`` where no console script is on the path."""

import sys

from tvae.cli.exit_codes import ExitCode


def program() -> None:
    """A command, and then the end of the process. Ctrl-C while its modules are loaded ends it without a traceback."""
    try:
        from tvae.cli.app import main
        from tvae.pipeline.settings.leaving import leaving

        with leaving():
            main()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    program()
